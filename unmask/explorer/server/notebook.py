"""The explorer inside a notebook: the same page in a frame, answered by the kernel through its own messages.

There is no server and no port. The page asks the page around it, the widget's script hands the question to
the kernel as a message, and what `Api.answer` says goes back as bytes. Needs the ``notebook`` extra
(anywidget), imported when `explore` is first called.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from unmask.base import optional
from unmask.errors import InvalidRequest
from unmask.explorer.page import fragment

if TYPE_CHECKING:
    import anywidget

    from unmask.explorer.api import Api
    from unmask.models.elmo import ElmoModel
    from unmask.models.load import Model

HEIGHT = 900
"""Of the frame, in pixels."""

SCRIPT = """
function render({ model, el }) {
  // Several views of one widget count their questions each for itself; the name tells them apart.
  const view = crypto.getRandomValues(new Uint32Array(2)).join('-');
  const frame = document.createElement('iframe');
  frame.title = 'unmask explorer';
  frame.setAttribute('sandbox', 'allow-scripts allow-downloads');
  Object.assign(frame.style, { width: '100%', height: `${model.get('height')}px`, border: '0' });
  frame.srcdoc = model.get('page');
  const ask = ({ source, data }) => {
    if (source !== frame.contentWindow || data?.unmask !== 1) return;
    const { id, method, path, body } = data;
    model.send({ unmask: 1, view, id, method, path, body });
  };
  const answer = (message, buffers) => {
    if (message?.unmask !== 1 || message.view !== view) return;
    const { id, status, type } = message;
    const part = buffers?.[0];
    const bytes = part === undefined ? new Uint8Array() : ArrayBuffer.isView(part)
      ? new Uint8Array(part.buffer, part.byteOffset, part.byteLength) : new Uint8Array(part);
    const data = bytes.slice().buffer;
    frame.contentWindow?.postMessage({ unmask: 1, id, status, type, data }, '*', [data]);
  };
  window.addEventListener('message', ask);
  model.on('msg:custom', answer);
  el.append(frame);
  return () => {
    window.removeEventListener('message', ask);
    model.off('msg:custom', answer);
    frame.remove();
  };
}

export default { render };
"""
"""The script of the widget in the page of the notebook."""


def explore(
    model: "Model | ElmoModel | str | Sequence[Model | ElmoModel | str]" = "default",
    text: str | None = None,
    pair: str | None = None,
    *,
    height: int = HEIGHT,
) -> "anywidget.AnyWidget":
    """The explorer as a widget: the last line of a cell shows it.

    Args:
        model: a loaded model, a name as for `unmask.load`, or several of both, to be compared.
        text: read when it is shown; None leaves the choice to the page.
        pair: a second text, for models that read pairs.
        height: of the frame, in pixels.

    While a cell runs the kernel receives no messages, so the page waits until it has ended.

    Raises:
        MissingExtra: a package of the extra ``notebook`` is not installed.
        InvalidRequest: no model, a pair without a text, or a height that is none.
        CheckpointError: a name is not a checkpoint that can be loaded.
    """
    optional.require("notebook")
    if pair is not None and text is None:
        raise InvalidRequest("a pair was given without a text; give both")
    if not 100 <= height <= 10_000:
        raise InvalidRequest(f"height is {height} pixels; it can be 100 to 10000")
    from unmask.explorer.api import Api
    from unmask.explorer.export.standalone_html import framed_page
    from unmask.models.elmo import ElmoModel
    from unmask.models.load import Model, load

    models = [model] if isinstance(model, Model | ElmoModel | str) else list(model)
    api = Api([load(each) if isinstance(each, str) else each for each in models])
    page = framed_page(fragment({"text": text, "pair": pair}))
    widget: anywidget.AnyWidget = _widget_class()(page=page, height=height)
    widget.api = api
    widget.on_msg(partial(_answer_message, api))
    return widget


def reply(api: "Api", message: Any) -> tuple[dict[str, Any], bytes] | None:
    """The reply to a message of the page and its bytes; None where the message is not a request."""
    if not isinstance(message, dict) or message.get("unmask") != 1:
        return None
    method, path, body = message.get("method"), message.get("path"), message.get("body")
    data = b"" if body is None else json.dumps(body).encode()
    answer = api.answer(str(method), str(path), body=data)
    head = {"unmask": 1, "view": message.get("view"), "id": message.get("id")}
    return {**head, "status": answer.status, "type": answer.media_type}, answer.data


def _answer_message(api: "Api", widget: Any, message: Any, buffers: object) -> None:
    answered = reply(api, message)
    if answered is not None:
        widget.send(answered[0], buffers=[answered[1]])


@cache
def _widget_class() -> Callable[..., Any]:
    """The widget; made on first use, since its base is optional."""
    import anywidget
    import traitlets

    class Explorer(anywidget.AnyWidget):
        """A frame around the page."""

        _esm = SCRIPT
        page = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int().tag(sync=True)
        api: Any = None

        def close(self) -> None:
            """Take it away and stop what is computed for it."""
            if self.api is not None:
                self.api.close()
            super().close()

    return Explorer
