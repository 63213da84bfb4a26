"""The page's API: a function from requests to typed answers, its routes and the shapes of answers."""
