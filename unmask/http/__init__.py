"""What every server of this package stands on: who may ask, how a request is read, how it is answered.

Nothing here knows what is asked for. ``guard``, ``requests.read_body`` and ``server`` need the ``explorer``
extra (starlette, uvicorn), which is imported where it is used.
"""
