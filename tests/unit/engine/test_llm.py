"""`LLM` over the scripted backend: all six components in one process, without a model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from sixfold import LLM, SamplingParams
from sixfold.errors import ConfigError, ContextLengthExceeded, EngineDead, InvalidRequest, RequestFailed

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM("scripted") as llm:
        yield llm
        llm.core.check()
        stats = llm.core.stats()
        assert not llm.core.has_work and stats.blocks_free + stats.blocks_cached == stats.blocks_total


def test_one_text_a_list_and_token_ids(llm: LLM) -> None:
    text = llm.generate("abc", GREEDY)[0]
    assert (text.prompt, text.prompt_token_ids) == ("abc", [97, 98, 99])
    choice = text.outputs[0]
    assert len(choice.token_ids) == 12 and choice.finish_reason == "length"
    assert choice.text == llm.tokenizer.decode(choice.token_ids)
    for prompts in (["abc", "abc"], [[97, 98, 99]] * 2, [97, 98, 99]):
        for output in llm.generate(prompts, GREEDY):
            assert output.outputs[0].token_ids == choice.token_ids


def test_more_prompts_than_the_queue_holds(llm: LLM) -> None:
    prompts = [f"prompt {i}" for i in range(700)]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=2))
    assert [o.prompt for o in outputs] == prompts
    assert all(len(o.outputs[0].token_ids) == 2 for o in outputs)


def test_chat_and_conversations(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    [one] = llm.chat(messages, GREEDY)
    both = llm.chat([messages, messages], [GREEDY, GREEDY])
    assert [o.outputs[0].token_ids for o in both] == [one.outputs[0].token_ids] * 2
    assert llm.tokenizer.control["<|im_start|>"] in one.prompt_token_ids


def test_chat_takes_what_makes_a_prompt(llm: LLM) -> None:
    def prompt(*messages: tuple[str, str], **options: Any) -> str:
        [output] = llm.chat([{"role": role, "content": text} for role, text in messages], GREEDY, **options)
        return llm.tokenizer.decode(output.prompt_token_ids, skip_special=False)

    tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
    assert '"name": "clock"' in prompt(("user", "hi"), tools=[tool])
    assert prompt(("user", "hi"), ("assistant", "so"), continue_final_message=True).endswith("assistant\nso")
    assert prompt(("user", "hi"), add_generation_prompt=False).endswith("hi<|im_end|>\n")
    with pytest.raises(InvalidRequest) as caught:
        prompt(("user", "hi"), chat_template_kwargs={"messages": []})
    assert caught.value.param == "chat_template_kwargs"
    with pytest.raises(InvalidRequest) as caught:
        prompt(("user", "hi"), tools=[{"name": "clock"}])
    assert caught.value.param == "tools[0]"


def test_streaming_equals_generating(llm: LLM) -> None:
    deltas = list(llm.stream("abc", GREEDY))
    assert "".join(d.text for d in deltas) == llm.generate("abc", GREEDY)[0].outputs[0].text
    assert deltas[-1].finish_reason == "length"


def test_closing_a_stream_aborts_it(llm: LLM) -> None:
    stream = llm.stream("abc", SamplingParams(max_tokens=1000))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    llm.generate("x", GREEDY)
    assert llm.core.stats().finished["abort"] == 1


def test_seeds_choices_and_logprobs(llm: LLM) -> None:
    params = SamplingParams(seed=3, n=3, max_tokens=6, logprobs=2, prompt_logprobs=1)
    one, two = llm.generate(["abcdefgh", "abcdefgh"], params)
    assert [c.token_ids for c in one.outputs] == [c.token_ids for c in two.outputs]
    assert len({tuple(c.token_ids) for c in one.outputs}) == 3
    for choice in one.outputs:
        assert choice.logprobs is not None and len(choice.logprobs) == 6
    assert one.prompt_logprobs is not None and len(one.prompt_logprobs) == 7


def test_stop_strings_and_usage(tmp_path: Path) -> None:
    script = tmp_path / "s.json"
    script.write_text('{"tokens": ["ab", "cd"], "script": ["x", "ab", "cd", "y"]}')
    with LLM("scripted", script=str(script)) as llm:
        [output] = llm.generate("p", SamplingParams(temperature=0.0, stop=("bc",)))
        choice = output.outputs[0]
        assert (choice.text, choice.finish_reason, choice.stop_reason) == ("xa", "stop", "bc")
        assert len(choice.token_ids) == 3
        [output] = llm.generate("p", SamplingParams(temperature=0.0))
        ended = output.outputs[0]
        assert (ended.text, ended.finish_reason, ended.stop_reason) == ("xabcdy", "stop", None)
        assert not llm.core.has_work


def test_words_and_ids_that_are_forbidden(tmp_path: Path) -> None:
    script = tmp_path / "s.json"
    script.write_text('{"script": ["c", "a", "t", "!"]}')
    with LLM("scripted", script=str(script)) as llm:
        for params, text in (
            (SamplingParams(temperature=0.0, max_tokens=4), "cat!"),
            (SamplingParams(temperature=0.0, max_tokens=4, bad_words=("cat",)), "ca\0!"),
            (SamplingParams(temperature=0.0, max_tokens=4, allowed_token_ids=(97, 98)), "aaaa"),
        ):
            assert llm.generate("p", params)[0].outputs[0].text == text
        with pytest.raises(InvalidRequest, match="allowed_token_ids"):
            llm.generate("p", SamplingParams(allowed_token_ids=(10**6,)))
        with pytest.raises(InvalidRequest, match="forbid all"):
            llm.generate("p", SamplingParams(allowed_token_ids=(97,), bad_words=("a",)))


def test_a_failed_request_raises_and_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "s.json"
    script.write_text('{"script": ["x", -1]}')
    with LLM("scripted", script=str(script)) as llm:
        with pytest.raises(RequestFailed, match="no usable logits"):
            llm.generate("p", GREEDY)
        with pytest.raises(RequestFailed):
            list(llm.stream("p", GREEDY))
        llm.core.check()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda llm: llm.generate(""), InvalidRequest),
        (lambda llm: llm.generate(["a", ""]), InvalidRequest),
        (lambda llm: llm.generate([[10**6]]), InvalidRequest),
        (lambda llm: llm.generate("a" * 3000), ContextLengthExceeded),
        (lambda llm: llm.generate("a", SamplingParams(max_tokens=5000)), ContextLengthExceeded),
        (lambda llm: llm.generate(["a", "b"], [GREEDY]), InvalidRequest),
        (lambda llm: llm.generate([True, False]), InvalidRequest),
        (lambda llm: llm.generate([None]), InvalidRequest),
        (lambda llm: llm.generate(["a"], [None]), InvalidRequest),
        (lambda llm: llm.chat([{"role": "user"}]), InvalidRequest),
        (lambda llm: llm.chat([{"role": "bot", "content": "hi"}]), InvalidRequest),
        (lambda llm: llm.chat("hi"), InvalidRequest),
        (lambda llm: llm.chat([["hi"]]), InvalidRequest),
        (lambda llm: llm.generate("a", SamplingParams(stop_token_ids=(10**6,))), InvalidRequest),
    ],
)
def test_mistakes_are_refused_before_anything_runs(llm: LLM, call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(llm)
    assert llm.core.stats().steps == 0


def test_streams_may_be_read_in_turn(llm: LLM) -> None:
    """A turn of the engine brings tokens to all requests; nobody's are lost to whoever turned it."""
    alone = [llm.generate(p, GREEDY)[0].outputs[0].text for p in ("abc", "xyz")]
    texts = ["", ""]
    for pair in zip_longest(llm.stream("abc", GREEDY), llm.stream("xyz", GREEDY)):
        for i, delta in enumerate(pair):
            texts[i] += delta.text if delta is not None else ""
    assert texts == alone
    text = ""
    for delta in llm.stream("abc", GREEDY):
        text += delta.text
        assert llm.generate("xyz", GREEDY)[0].outputs[0].text == alone[1]
    assert text == alone[0]


def test_threads_share_one_engine(llm: LLM) -> None:
    prompts = [f"thread {i}" for i in range(8)]
    alone = [o.outputs[0].text for o in llm.generate(prompts, GREEDY)]
    with ThreadPoolExecutor(8) as threads:
        assert [o[0].outputs[0].text for o in threads.map(lambda p: llm.generate(p, GREEDY), prompts)] == alone


def test_ctrl_c_is_noticed_between_steps(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step = llm.core.step

    def interrupted() -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return step()

    expected = llm.generate("abc", GREEDY)[0].outputs[0].text
    with monkeypatch.context() as patch:
        patch.setattr(llm.core, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("abc", GREEDY)
    assert llm.generate("abc", GREEDY)[0].outputs[0].text == expected


def test_a_failed_engine_says_so_ever_after(monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM("scripted") as llm:
        monkeypatch.setattr(llm.core.executor, "collect", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            llm.generate("abc", GREEDY)
        with pytest.raises(EngineDead, match="has failed"):
            llm.generate("abc", GREEDY)


def test_a_closed_llm_says_so() -> None:
    llm = LLM("scripted")
    stream = llm.stream("abc", GREEDY)
    next(stream)
    llm.close()
    llm.close()
    with pytest.raises(EngineDead, match="closed"):
        list(stream)
    with pytest.raises(EngineDead, match="closed"):
        llm.generate("abc", GREEDY)


def test_a_forked_child_is_told(llm: LLM) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            llm.generate("abc", GREEDY)
        except EngineDead:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_seqs"):
        LLM("scripted", max_seqs=3)
    with pytest.raises(ConfigError, match=r"^max_num_seqs is 0; it must be between 1 and 4096$") as caught:
        LLM("scripted", max_num_seqs=0)
    assert caught.value.param == "max_num_seqs"
    with pytest.raises(ConfigError, match=r"^kv_cache_memory 'x' is not a size"):
        LLM("scripted", kv_cache_memory="x")
