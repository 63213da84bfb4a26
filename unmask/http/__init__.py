"""The HTTP toolkit of every server in this package: access control, request parsing, responses.

Nothing here depends on a particular route. ``guard``, ``requests.read_body`` and ``server`` need the
``explorer`` extra (starlette, uvicorn), which is imported where it is used.
"""
