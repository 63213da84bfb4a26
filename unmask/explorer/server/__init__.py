"""The local web server of the explorer: the application, its static files, its address."""
