"""deepserve from Python: requests of OpenAI Chat Completions, OpenAI Responses and Anthropic Messages to DeepSeek V4 and V4.1 prompts and token ids,
model output back to responses and events, pictures for the vision tower.

    import deepserve
    deepserve.render({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})["prompt"]

Names are those of the C functions without `ds_`; python/README.md shows all of it."""
from .errors import ApiError, Error
from .image import Fetched, Layout, Picture, Pixels, fetch, image_decode, image_layout, image_prepare, request_images
from .request import Options, Request, Seal, render
from .stream import Event, Stream, Usage, parse, sse_end
from .tokenizer import Decoder, Tokenizer

__version__ = "0.1.0"
__all__ = ["ApiError", "Decoder", "Error", "Event", "Fetched", "Layout", "Options", "Picture", "Pixels", "Request", "Seal", "Stream", "Tokenizer", "Usage",
           "fetch", "image_decode", "image_layout", "image_prepare", "parse", "render", "request_images", "sse_end"]
