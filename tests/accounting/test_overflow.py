import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.accounting.overflow import LONGEST_BODY, WindowOverflow, read_overflow

VLLM = "This model's maximum context length is 2048 tokens. However, "
OPENAI_RESPONSES = {
    "message": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "type": "invalid_request_error",
    "param": "input",
    "code": "context_length_exceeded",
}
OPENAI_CHAT = {
    "message": (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130045 tokens. "
        "Please reduce the length of the messages."
    ),
    "type": "invalid_request_error",
    "param": "messages",
    "code": "context_length_exceeded",
}
LLAMA_CPP = {
    "error": {
        "code": 400,
        "message": "request (351 tokens) exceeds the available context size (256 tokens), try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 351,
        "n_ctx": 256,
    }
}
GEMINI = {
    "error": {
        "code": 400,
        "message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "status": "INVALID_ARGUMENT",
    }
}


def openai(message: str, **fields: object) -> dict[str, object]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **fields}}


def anthropic(message: str, kind: str = "invalid_request_error") -> dict[str, object]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


OVERFLOWS: list[tuple[str, int, object, int | None, int | None]] = [
    ("openai responses", 400, {"error": OPENAI_RESPONSES}, None, None),
    ("openai responses, streamed", 200, {"type": "error", "sequence_number": 2, "error": OPENAI_RESPONSES}, None, None),
    (
        "openai responses, failed",
        200,
        {"type": "response.failed", "response": {"id": "resp_1", "error": OPENAI_RESPONSES}},
        None,
        None,
    ),
    ("openai chat", 400, {"error": OPENAI_CHAT}, 128_000, 130_045),
    (
        "openai chat, input limit",
        400,
        openai(
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 289650 tokens. "
            "Please reduce the length of the messages.",
            code="context_length_exceeded",
        ),
        272_000,
        289_650,
    ),
    ("anthropic", 400, anthropic("prompt is too long: 208310 tokens > 200000 maximum"), 200_000, 208_310),
    ("anthropic, streamed", 200, anthropic("prompt is too long: 208310 tokens > 200000 maximum"), 200_000, 208_310),
    ("anthropic, bytes", 413, anthropic("Request exceeds the maximum size", "request_too_large"), None, None),
    (
        "anthropic, stop reason",
        200,
        {"type": "message", "content": [], "stop_reason": "model_context_window_exceeded"},
        None,
        None,
    ),
    (
        "anthropic, stop reason streamed",
        200,
        {"type": "message_delta", "delta": {"stop_reason": "model_context_window_exceeded"}},
        None,
        None,
    ),
    (
        "vllm",
        400,
        openai(
            VLLM + "your request has 8 input tokens. Please reduce the length of the input messages. "
            "(parameter=input_tokens, value=8)",
            type="BadRequestError",
            param="input_tokens",
            code=400,
        ),
        2_048,
        8,
    ),
    (
        "vllm, older",
        400,
        {
            "object": "error",
            "message": VLLM + "you requested 2100 tokens in the messages, Please reduce the length of the messages.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        2_048,
        2_100,
    ),
    ("llama.cpp", 400, LLAMA_CPP, 256, 351),
    (
        "llama.cpp, by its fields",
        400,
        {"error": {"message": "no", "type": "exceed_context_size_error", "n_prompt_tokens": 351, "n_ctx": 256}},
        256,
        351,
    ),
    ("ollama, as a string", 400, {"error": json.dumps(LLAMA_CPP)}, 256, 351),
    ("ollama, cut off", 500, openai("no user query found in messages", type="api_error"), None, None),
    ("gemini", 400, GEMINI, 1_048_576, 1_200_000),
    ("gemini, in an array", 400, [GEMINI], 1_048_576, 1_200_000),
    (
        "openrouter",
        400,
        {
            "error": {
                "message": "This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 "
                'tokens (42832 of text input). Please reduce the length of either one, or use the "middle-out" '
                "transform to compress your prompt automatically.",
                "code": 400,
                "metadata": {"provider_name": None},
            }
        },
        32_768,
        42_832,
    ),
    (
        "openrouter, handing on",
        400,
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": json.dumps(anthropic("prompt is too long: 208310 tokens > 200000 maximum"))},
            }
        },
        200_000,
        208_310,
    ),
    ("bedrock", 400, {"message": "Input is too long for requested model."}, None, None),
    (
        "xai",
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        },
        131_072,
        537_812,
    ),
    ("groq", 400, openai("Please reduce the length of the messages or completion."), None, None),
    (
        "copilot",
        400,
        openai(
            "prompt token count of 140000 exceeds the limit of 128000",
            code="model_max_prompt_tokens_exceeded",
        ),
        128_000,
        140_000,
    ),
    (
        "lm studio",
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the context length. Try to "
            "load the model with a larger context length, or provide a shorter input"
        },
        None,
        None,
    ),
    ("minimax", 400, openai("invalid params, context window exceeds limit (2013)"), None, None),
    (
        "moonshot",
        400,
        openai("Invalid request: Your request exceeded model token limit: 262144 (requested: 270000)"),
        262_144,
        270_000,
    ),
    ("moonshot, plain", 400, openai("Your request exceeded model token limit"), None, None),
    (
        "mistral",
        400,
        {
            "object": "error",
            "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum "
            "context length",
            "type": "invalid_request_prompt",
        },
        32_768,
        40_000,
    ),
    (
        "cohere",
        400,
        {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000."},
        4_081,
        5_000,
    ),
    (
        "numbers with commas",
        400,
        openai("This model's maximum context length is 1,048,576 tokens. However, you requested 1,200,000 tokens"),
        1_048_576,
        1_200_000,
    ),
    (
        "litellm, handing on",
        400,
        openai("litellm.BadRequestError: " + json.dumps({"error": OPENAI_CHAT})),
        128_000,
        130_045,
    ),
    ("fastapi", 400, {"detail": {"error": OPENAI_CHAT}}, 128_000, 130_045),
    (
        "vllm, model length",
        400,
        openai("The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
        4_096,
        5_000,
    ),
    ("vllm, window", 400, openai("The context length is only 4096 tokens, resulting in too few."), 4_096, None),
    (
        "sglang, input",
        400,
        openai("The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
        4_096,
        5_000,
    ),
    (
        "vertex",
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "Unable to submit request because the input token count is 1200000 but model only "
                    "supports up to 1048576. Reduce the input token count and try again.",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
        1_048_576,
        1_200_000,
    ),
    (
        "fireworks",
        400,
        openai("The prompt is too long: 132000, model maximum context length: 131071"),
        131_071,
        132_000,
    ),
    ("dashscope", 400, openai("Range of input length should be [1, 129024]"), 129_024, None),
    ("z.ai", 400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}, None, None),
    (
        "llama.cpp, no figures",
        400,
        {"error": {"message": "the request exceeds the available context size"}},
        None,
        None,
    ),
    ("ollama, in words", 400, {"error": "prompt too long; exceeded max context length by 20 tokens"}, None, None),
    (
        "input length, in words",
        400,
        openai("The input length of 70 tokens exceeds the model's context length"),
        None,
        70,
    ),
    ("a code within a text", 400, openai("Provider finished: model_context_window_exceeded"), None, None),
    ("an error in a string in an array", 400, [{"error": json.dumps([LLAMA_CPP])}], 256, 351),
    (
        "an echo of a long request",
        422,
        {"detail": [{"input": "x" * 200_000, "msg": "prompt is too long: 9 tokens > 8 maximum"}]},
        8,
        9,
    ),
    (
        "cerebras",
        400,
        {
            "message": "Please reduce the length of the messages or completion. Current length is 42328 while limit is "
            "40000",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        },
        40_000,
        42_328,
    ),
    (
        "llama.cpp, figures beside its words",
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size. try increasing the context size or enable "
                "context shift",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 14_429,
                "n_ctx": 8_192,
            }
        },
        8_192,
        14_429,
    ),
    (
        "input length in brackets",
        400,
        openai("Input length (265330) exceeds model's maximum context length (262144)."),
        262_144,
        265_330,
    ),
    (
        "poolside",
        400,
        openai("Input length 131393 exceeds the maximum allowed input length of 131040 tokens."),
        131_040,
        131_393,
    ),
    ("glm", 400, openai("tokens in request more than max tokens allowed"), None, None),
    (
        "atlas",
        400,
        openai("Prompt too long: 5152 tokens exceeds max_seq_len 2048 (leave room for output tokens)"),
        2_048,
        5_152,
    ),
    (
        "siliconflow",
        400,
        {
            "code": 20_015,
            "message": "number of input tokens (167594) has exceeded max_prompt_tokens (163840) limit.",
            "data": None,
        },
        163_840,
        167_594,
    ),
    (
        "llama-cpp-python",
        500,
        openai("Requested tokens (516) exceed context window of 512", type="internal_server_error"),
        512,
        516,
    ),
    ("llama-cpp-python, older", 500, openai("Requested tokens exceed context window of 512"), 512, None),
    (
        "github models",
        413,
        {
            "error": {
                "code": "tokens_limit_reached",
                "message": "Request body too large for gpt-4o model. Max size: 8000 tokens.",
                "details": "Request body too large for gpt-4o model. Max size: 8000 tokens.",
            }
        },
        8_000,
        None,
    ),
    (
        "bedrock, openai's models",
        400,
        openai(
            "prompt tokens (1200008) exceed model maximum (1050000) for openai.gpt-5.6-terra", code="validation_error"
        ),
        1_050_000,
        1_200_008,
    ),
    (
        "lm studio, loaded too small",
        400,
        {
            "error": "Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded "
            "with context length of only 32768 tokens, which is not enough."
        },
        32_768,
        111_490,
    ),
    (
        "lm studio, with figures",
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: "
            "10247 >= n_ctx: 4096). Try to load the model with a larger context length, or provide a shorter prompt."
        },
        4_096,
        10_247,
    ),
    (
        "litellm",
        400,
        openai("Context Window exceeded for given call. No models have context window large enough"),
        None,
        None,
    ),
    (
        "gemini, limit alone",
        400,
        openai("The input token count exceeds the maximum number of tokens allowed (1048576)."),
        1_048_576,
        None,
    ),
    ("tensorrt-llm", 400, openai("Prompt length (5056) exceeds maximum sequence length (2048)"), 2_048, 5_056),
    (
        "tensorrt-llm, as a sum",
        400,
        openai("The sum of prompt length (9351.0), query length (0) should not exceed max_num_tokens (8192)"),
        8_192,
        9_351,
    ),
    ("thousands as k", 400, openai("This model's maximum context length is 128k tokens."), 128_000, None),
    ("millions as m", 400, openai("The input exceeds the limit of 1M tokens"), 1_000_000, None),
    (
        "a general word before what names the limit",
        400,
        {"error": {"message": "The input exceeds the context window.", "metadata": {"raw": OPENAI_CHAT["message"]}}},
        128_000,
        130_045,
    ),
    ("code alone", 400, {"error": {"message": "Too long.", "code": "context_length_exceeded"}}, None, None),
]


@pytest.mark.parametrize(
    ("status", "body", "limit", "asked"), [o[1:] for o in OVERFLOWS], ids=[o[0] for o in OVERFLOWS]
)
def test_an_overflow_is_read_in_every_shape(status: int, body: object, limit: int | None, asked: int | None) -> None:
    assert read_overflow(status, json.dumps(body)) == WindowOverflow(limit, asked)
    assert read_overflow(status, json.dumps(body, indent=2) + "\n") == WindowOverflow(limit, asked)


@pytest.mark.parametrize(
    ("status", "body", "limit", "asked"), [o[1:] for o in OVERFLOWS], ids=[o[0] for o in OVERFLOWS]
)
def test_an_overflow_is_read_from_the_event_of_a_stream(
    status: int, body: object, limit: int | None, asked: int | None
) -> None:
    event = f"event: error\ndata: {json.dumps(body)}\n\n"
    assert read_overflow(status, event) == WindowOverflow(limit, asked)


def lines_of(name: str) -> list[list[str]]:
    return [line.split("\t") for line in (Path(__file__).parent / name).read_text("utf-8").splitlines()]


@pytest.mark.parametrize(("limit", "requested", "text"), lines_of("overflow_texts.tsv"))
def test_a_text_of_any_server_is_read_with_its_figures(limit: str, requested: str, text: str) -> None:
    figures = [int(figure) if figure else None for figure in (limit, requested)]
    for status, body in (
        (400, openai(text)),
        (500, {"detail": text}),
        (200, {"type": "error", "error": {"message": text}}),
    ):
        overflow = read_overflow(status, json.dumps(body))
        assert overflow is not None
        assert [overflow.limit, overflow.requested] == figures


@pytest.mark.parametrize(
    "body",
    [
        {"error_code": 336007, "error_msg": "prompt is too long"},
        {"base_resp": {"status_code": 2013, "status_msg": "prompt is too long"}},
        {"Message": "prompt is too long"},
        {"title": "Bad Request", "errorMessage": "prompt is too long"},
        {"ErrorDetails": [{"cause": "prompt is too long"}]},
    ],
)
def test_a_text_is_read_in_a_field_of_any_server(body: object) -> None:
    assert read_overflow(400, json.dumps(body)) is not None


def test_a_text_that_echoes_the_request_is_not_read() -> None:
    echo = {"detail": [{"loc": ["body"], "msg": "wrong", "input": {"messages": ["prompt is too long"]}}]}
    assert read_overflow(422, json.dumps(echo)) is None


@pytest.mark.parametrize("text", [line for (line,) in lines_of("other_error_texts.txt")])
def test_a_text_about_another_limit_is_no_overflow(text: str) -> None:
    assert read_overflow(400, json.dumps(openai(text))) is None


@pytest.mark.parametrize(
    "code",
    [
        "context_length_exceeded",
        "exceed_context_size_error",
        "model_max_prompt_tokens_exceeded",
        "tokens_limit_reached",
        "input_too_large",
        "prompt_too_long",
        "ContextWindowExceededError",
        "InputTokenLimitExceeded",
        "token_limit_exceeded",
        "request_too_large",
    ],
)
def test_a_code_is_read_like_a_text(code: str) -> None:
    assert read_overflow(400, json.dumps(openai("No.", code=code))) == WindowOverflow()


@pytest.mark.parametrize(
    "code",
    [
        "rate_limit_exceeded",
        "string_above_max_length",
        "max_tokens_exceeded",
        "image_too_large",
        "payload_too_large",
        "too_many_tools",
        "context_deadline_exceeded",
        "tokens_per_minute_exceeded",
    ],
)
def test_a_code_of_another_limit_is_no_overflow(code: str) -> None:
    assert read_overflow(400, json.dumps(openai("No.", code=code))) is None


def test_figures_that_contradict_each_other_are_not_learned() -> None:
    assert read_overflow(400, "prompt of 8192 tokens exceeds 13000 tokens") == WindowOverflow()


@pytest.mark.parametrize(
    "text",
    [
        "prompt is too long: 208310 tokens > 200000 maximum",
        "400 prompt is too long: 208310 tokens > 200000 maximum (request_id: x)",
        'data: {"type":"ping"}\n\ndata: {"error":"prompt is too long: 208310 tokens > 200000 maximum"}',
    ],
)
def test_an_overflow_is_read_from_bare_text(text: str) -> None:
    assert read_overflow(400, text) == WindowOverflow(200_000, 208_310)


ANSWERS: list[tuple[str, int, object, WindowOverflow]] = [
    (
        "openai, older",
        400,
        openai(
            "This model's maximum context length is 4097 tokens. However, you requested 5360 tokens (4360 in the "
            "messages, 1000 in the completion). Please reduce the length of the messages or completion."
        ),
        WindowOverflow(4_097, 4_360, 1_000),
    ),
    (
        "openai, older, with functions",
        400,
        openai(
            "This model's maximum context length is 4097 tokens. However, you requested 4297 tokens (2297 in the "
            "messages, 1000 in the functions, and 1000 in the completion)."
        ),
        WindowOverflow(4_097, 3_297, 1_000),
    ),
    (
        "openai, completions",
        400,
        openai(
            "This model's maximum context length is 4097 tokens, however you requested 4231 tokens (3975 in your "
            "prompt; 256 for the completion). Please reduce your prompt; or completion length."
        ),
        WindowOverflow(4_097, 3_975, 256),
    ),
    (
        "openrouter, with output",
        400,
        openai(
            "This endpoint's maximum context length is 204800 tokens. However, you requested about 205432 tokens "
            "(81684 of text input, 3748 of tool input, 120000 in the output). Please reduce the length of either one."
        ),
        WindowOverflow(204_800, 85_432, 120_000),
    ),
    (
        "anthropic",
        400,
        anthropic(
            "input length and `max_tokens` exceed context limit: 189136 + 20000 > 204648, decrease input length or "
            "`max_tokens` and try again"
        ),
        WindowOverflow(204_648, 189_136, 20_000),
    ),
    (
        "vllm",
        400,
        openai(
            VLLM + "you requested 512 output tokens and your prompt contains at least 2000 input tokens, for a total "
            "of at least 2512 tokens. Please reduce the length of the input prompt."
        ),
        WindowOverflow(2_048, 2_000, 512),
    ),
    (
        "vllm, by characters",
        400,
        openai(
            VLLM + "you requested 48 output tokens and your prompt contains 90000 characters (more than 32000 "
            "characters, which is the upper bound for 2000 input tokens)."
        ),
        WindowOverflow(2_048, None, 48),
    ),
    (
        "vllm, output asked for",
        400,
        openai(
            "'max_tokens' or 'max_completion_tokens' is too large: 3000. This model's maximum context length is 2048 "
            "tokens and your request has 8 input tokens (3000 > 2048 - 8).",
            code=400,
        ),
        WindowOverflow(2_048, 8, 3_000),
    ),
    (
        "sglang",
        400,
        {
            "object": "error",
            "message": "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested "
            "a total of 5000 tokens: 4500 tokens from the input messages and 500 tokens for the completion.",
            "type": "BadRequest",
            "code": 400,
        },
        WindowOverflow(4_096, 4_500, 500),
    ),
    (
        "text generation inference",
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` "
            "tokens and 500 `max_new_tokens`",
            "error_type": "validation",
        },
        WindowOverflow(4_096, 4_000, 500),
    ),
    (
        "figures that cannot be",
        400,
        openai(VLLM + "you requested 5 tokens (4 in x, 9 in the completion)"),
        WindowOverflow(2_048, None, 9),
    ),
]


@pytest.mark.parametrize(("status", "body", "overflow"), [a[1:] for a in ANSWERS], ids=[a[0] for a in ANSWERS])
def test_the_answer_that_was_asked_for_is_told_from_the_input(
    status: int, body: object, overflow: WindowOverflow
) -> None:
    assert read_overflow(status, json.dumps(body)) == overflow


ORDINARY: list[tuple[int, object]] = [
    (400, ""),
    (413, ""),
    (400, "   \n"),
    (413, "<html><h1>413 Request Entity Too Large</h1></html>"),
    (400, "Bad Request"),
    (400, openai("Unsupported parameter: 'max_tokens' is not supported with this model.", param="max_tokens")),
    (400, openai("max_tokens is too large: 100000. This model supports at most 16384 completion tokens.")),
    (400, anthropic("max_tokens: 128001 > 64000, which is the maximum allowed number of output tokens for claude")),
    (400, anthropic("messages.1.content.0: Invalid `signature` in `thinking` block.")),
    (400, anthropic("messages: roles must alternate between user and assistant")),
    (400, anthropic("Your credit balance is too low to access the Anthropic API.")),
    (
        400,
        anthropic(
            "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes"
        ),
    ),
    (400, openai("Invalid 'messages': array too long. Expected an array with maximum length 2048, got 2050 instead.")),
    (400, openai("Invalid 'input[0].content': string too long. Expected a string with maximum length 10485760.")),
    (400, openai("Invalid 'tools': the number of tools exceeds the limit of 128")),
    (400, openai("The input image exceeds the limit of 20 MB")),
    (400, openai("prompt file exceeds the limit of 50 pages")),
    (400, openai("prompt file exceeds the limit of 20k bytes")),
    (400, openai("Input exceeds the maximum allowed input length of 4096 characters.")),
    (
        400,
        {"message": "The maximum tokens you requested exceeds the model limit of 32768. Try again with a lower one."},
    ),
    (400, openai("Request body too large for the gateway. Max size: 8000 bytes.")),
    (400, openai("An assistant message with 'tool_calls' must be followed by tool messages")),
    (400, openai("The model `gpt-9` does not exist", code="model_not_found")),
    (400, openai("Invalid prompt: your prompt was flagged", code="invalid_prompt")),
    (400, openai("You exceeded your current quota, please check your plan", code="insufficient_quota")),
    (
        413,
        openai(
            "Request too large for model `llama` on tokens per minute (TPM): Limit 6000, Requested 20000, please "
            "reduce your message size and try again.",
            type="tokens",
            code="rate_limit_exceeded",
        ),
    ),
    (
        429,
        openai(
            "Request too large for gpt-4o in organization org on tokens per min (TPM): Limit 30000, Requested 45000. "
            "The input or output tokens must be reduced in order to run successfully.",
            type="tokens",
            code="rate_limit_exceeded",
        ),
    ),
    (429, anthropic("This request would exceed your rate limit of 40,000 input tokens per minute", "rate_limit_error")),
    (429, anthropic("prompt is too long: 2 tokens > 1 maximum")),
    (401, openai("maximum context length is 5 tokens")),
    (529, anthropic("Overloaded", "overloaded_error")),
    (500, openai("The server had an error while processing your request.", type="server_error")),
    (400, openai("no user query found in messages")),
    (502, "upstream connect error or disconnect/reset before headers"),
    (
        400,
        {"detail": [{"loc": ["body"], "msg": "field required", "input": "prompt is too long: 2 tokens > 1 maximum"}]},
    ),
    (
        200,
        {
            "id": "msg",
            "type": "message",
            "content": [{"type": "text", "text": "prompt is too long: 9 tokens > 8 maximum"}],
        },
    ),
    (200, {"choices": [{"message": {"content": "maximum context length is 10 tokens"}, "finish_reason": "length"}]}),
    (
        422,
        {"detail": [{"msg": "field required", "input": "prompt is too long: 2 tokens > 1 maximum" + "x" * 200_000}]},
    ),
    (400, {"error": {"code": 400, "message": "Invalid value"}}),
    (400, 17),
    (400, None),
    (400, []),
    (400, {"error": None}),
]


@pytest.mark.parametrize(("status", "body"), ORDINARY)
def test_an_ordinary_error_is_no_overflow(status: int, body: object) -> None:
    assert read_overflow(status, body if isinstance(body, str) else json.dumps(body)) is None


@pytest.mark.parametrize("body", ["", " \n"])
@pytest.mark.parametrize("status", [400, 413])
def test_a_bare_refusal_counts_only_near_the_window(status: int, body: str) -> None:
    assert read_overflow(status, body, is_near_window=True) == WindowOverflow(is_guessed=True)
    assert read_overflow(status, body) is None


@pytest.mark.parametrize(
    "body", ["<html><h1>413 Request Entity Too Large</h1></html>", '{"error":"Payload Too Large"}']
)
def test_a_413_that_says_no_more_than_its_name_counts_only_near_the_window(body: str) -> None:
    assert read_overflow(413, body, is_near_window=True) == WindowOverflow(is_guessed=True)
    assert read_overflow(413, body) is None
    assert read_overflow(400, body, is_near_window=True) is None


@pytest.mark.parametrize("status", [401, 404, 422, 429, 500, 503])
def test_other_statuses_without_a_word_are_no_overflows(status: int) -> None:
    assert read_overflow(status, "", is_near_window=True) is None


SAYING = [(status, body) for status, body in ORDINARY if str(body).strip() and "Entity Too Large" not in str(body)]


@pytest.mark.parametrize(("status", "body"), SAYING)
def test_an_error_that_says_something_else_is_no_overflow_near_the_window(status: int, body: object) -> None:
    assert read_overflow(status, body if isinstance(body, str) else json.dumps(body), is_near_window=True) is None


def test_a_limit_named_in_an_error_differs_from_a_guess() -> None:
    told = read_overflow(
        413, json.dumps(anthropic("Request exceeds the maximum size", "request_too_large")), is_near_window=True
    )
    assert told == WindowOverflow(is_guessed=False)


LEAVES = st.none() | st.integers() | st.text(max_size=20) | st.sampled_from(["error", '{"error":', "data: {", "[[["])
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["error", "message", "code", "type", "n_ctx", "delta", "x"]), inner)
    ),
)


@given(st.integers(100, 599), JSON)
def test_no_body_however_odd_fails(status: int, body: object) -> None:
    assert read_overflow(status, json.dumps(body)) is None or status not in (401, 429)


@given(st.text())
def test_no_text_however_odd_fails(text: str) -> None:
    assert read_overflow(400, text) is None


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"error":' * 50_000,
        json.dumps({"error": [[{"message": "x"}] * 200] * 20}),
        "maximum context length is " * 20_000,
        "prompt " * 20_000,
        "exceeds the limit of " + "1" * 60_000,
        "input length " * 20_000,
        "range of input length should be [" * 5_000,
        "[" + "1," * 400_000 + "1]",
        json.dumps([{"message": "input length maximum context length is " * 400}] * 60),
        "input token count (" * 20_000,
        "exceeds maximum context length of " * 20_000,
        "maximum context length is x requested 1 tokens (" * 2_000,
        "body too large for " * 20_000,
        "keep the first 1 tokens when " * 20_000,
    ],
)
def test_a_body_made_to_keep_one_busy_is_read_soon(body: str) -> None:
    overflow = read_overflow(400, body)
    assert overflow is None or overflow.limit is None


def test_numbers_beyond_reason_are_no_limits() -> None:
    assert read_overflow(400, f"prompt is too long: {'9' * 5_000} tokens > {'9' * 5_000} maximum") == WindowOverflow()


def test_a_part_of_a_figure_is_no_limit() -> None:
    assert read_overflow(400, "prompt is too long; maximum context length is 1.05.2 tokens") == WindowOverflow()
    assert read_overflow(400, "maximum context length is 1.05M tokens") == WindowOverflow(1_050_000)


def test_a_very_long_body_is_read_only_at_its_beginning() -> None:
    long = "x" * LONGEST_BODY + " prompt is too long: 2 tokens > 1 maximum"
    assert read_overflow(400, long) is None
