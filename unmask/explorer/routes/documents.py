"""Files that the page opens: the text of a PDF."""

from unmask.explorer.routes.route import Route
from unmask.explorer.sessions.context import AppContext
from unmask.explorer.sessions.documents import pdf_text
from unmask.http.requests import Request
from unmask.http.responses import Answer, json_answer

MAX_NAME = 100
"""Characters of a file's name in messages."""


def pdf(context: AppContext, request: Request) -> Answer:
    """``POST pdf?name=``: the text of the PDF file that is the body."""
    return json_answer(pdf_text(request.body, request.query.get("name", "the file")[:MAX_NAME]))


ROUTES = (Route("POST", "pdf", pdf),)
