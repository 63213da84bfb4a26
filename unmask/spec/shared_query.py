"""Which encoders can compute a query once for all of its documents."""

from unmask.errors import InvalidRequest
from unmask.spec.attention import FullAttention, SlidingWindow, SoftmaxAttention
from unmask.spec.encoder import EncoderSpec


def check_shared_query(spec: EncoderSpec) -> None:
    """Check that what a token reads can be bounded to its query, whatever follows.

    Raises:
        InvalidRequest: a layer has another mixer, blocks or global tokens, or there is a convolution.
    """
    if spec.convolution is not None:
        raise InvalidRequest(
            "a shared query is not built for encoders with a convolution, which reads across the query's "
            "border; use another encoder"
        )
    for layer in spec.layers:
        mixer = layer.mixer
        if not isinstance(mixer, SoftmaxAttention):
            raise InvalidRequest(
                "a shared query is not built for linear attention, which has no mask; use another encoder"
            )
        if not isinstance(mixer.pattern, FullAttention | SlidingWindow):
            raise InvalidRequest(
                f"a shared query is not built for {type(mixer.pattern).__name__}, whose blocks or global "
                "tokens depend on the whole sequence; use an encoder with full attention or windows"
            )
