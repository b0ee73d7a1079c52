"""deepserve from Python: requests of OpenAI Chat Completions, OpenAI Responses and Anthropic Messages to DeepSeek V4 and V4.1 prompts and token ids,
model output back to responses and events, pictures for the vision tower; and generation in this process.

    import deepserve
    deepserve.render({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})["prompt"]
    deepserve.LLM("models/demo").generate("Once upon a time", deepserve.SamplingParams(max_tokens=64))

Names are those of the C functions without `ds_`; python/README.md shows all of it."""
from .errors import ApiError, Error
from .image import Fetched, Layout, Picture, Pixels, fetch, image_decode, image_layout, image_prepare, request_images
from .llm import LLM, CompletionOutput, Logprob, RequestOutput, SamplingParams, StructuredOutputsParams
from .request import Options, Request, Seal, render
from .stream import Event, Stream, Usage, parse, sse_end
from .tokenizer import Decoder, Tokenizer

__version__ = "0.1.0"
__all__ = ["ApiError", "CompletionOutput", "Decoder", "Error", "Event", "Fetched", "LLM", "Layout", "Logprob", "Options", "Picture", "Pixels", "Request",
           "RequestOutput", "SamplingParams", "Seal", "Stream", "StructuredOutputsParams", "Tokenizer", "Usage", "fetch", "image_decode", "image_layout", "image_prepare", "parse",
           "render", "request_images", "sse_end"]
