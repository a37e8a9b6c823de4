"""The worker over the scripted backend: keys, order, slots; and the bytes in which a step travels."""

from __future__ import annotations

import pytest

from sixfold.errors import ProtocolError
from sixfold.executor.in_process import InProcessExecutor
from sixfold.executor.scripted import ScriptedBackend
from sixfold.executor.step_arrays import StepArrays
from sixfold.executor.wire import Packer, decode_result, decode_step, encode
from sixfold.executor.worker import Worker
from sixfold.messages import EMBED, PROMPT_LOGPROBS, SAMPLE, RowStatus, Sampling, SlotAdmit, StepPlan
from sixfold.text.script import FAULT

END = 256


def backend(**changes: object) -> ScriptedBackend:
    settings = {
        "n_vocab": 260,
        "printable": list(range(97, 123)),
        "end_id": END,
        "num_blocks": 32,
        "max_slots": 4,
        "max_model_len": 64,
        **changes,
    }
    return ScriptedBackend(**settings)  # type: ignore[arg-type]


def admit(slot: int = 0, tokens: tuple[int, ...] = (1, 2, 3), **changes: object) -> SlotAdmit:
    fields = {
        "slot": slot,
        "generation": 0,
        "incarnation": 0,
        "token_ids": list(tokens),
        "n_prompt_original": len(tokens),
        "choice": 0,
        "sampling": Sampling(seed=5, temperature=0.0),
        **changes,
    }
    return SlotAdmit(**fields)  # type: ignore[arg-type]


def plan(step_id: int, rows: list[tuple[int, int, int, int]], **changes: object) -> StepPlan:
    """Rows are (slot, start, count, flags)."""
    step = StepPlan(
        engine_epoch=1,
        step_id=step_id,
        slots=[r[0] for r in rows],
        generations=[0] * len(rows),
        incarnations=[0] * len(rows),
        starts=[r[1] for r in rows],
        counts=[r[2] for r in rows],
        flags=[r[3] for r in rows],
    )
    for name, value in changes.items():
        setattr(step, name, value)
    return step


def grows(row: int, start: int, count: int, blocks: list[int]) -> StepPlan:
    """A step of one row, and what it says of a table."""
    table = {"table_rows": [row], "table_starts": [start], "table_counts": [count], "table_blocks": blocks}
    return plan(1, [(0, 3, 1, 0)], **table)


def test_a_step_survives_the_wire() -> None:
    step = plan(0, [(0, 0, 3, SAMPLE), (2, 4, 1, 0)], admits=[admit()], copies=[(3, 4)], frees=[(1, 9)])
    step.table_rows, step.table_starts, step.table_counts, step.table_blocks = [0, 1], [0, 3], [2, 1], [7, 8, 9]
    got = StepArrays.unpack(decode_step(encode(Packer().pack(step))))
    assert [got.slots.tolist(), got.starts.tolist(), got.counts.tolist()] == [[0, 2], [0, 4], [3, 1]]
    assert got.flags.tolist() == [SAMPLE, 0]
    assert got.tables.tolist() == [[0, 1], [0, 3], [2, 1]]
    assert got.table_blocks.tolist() == [7, 8, 9] and got.copies.tolist() == [[3, 4]] and got.frees.tolist() == [[1, 9]]
    assert got.admits == step.admits


def test_each_step_has_its_own_columns() -> None:
    """A column is packed again when it is another than in the step before, be it longer, shorter or as long."""
    packer = Packer()
    steps = [
        [(0, 0, 3, SAMPLE)],
        [(0, 3, 1, SAMPLE)],
        [(0, 4, 1, SAMPLE), (1, 0, 2, 0)],
        [(1, 2, 1, SAMPLE), (0, 5, 1, SAMPLE)],
        [(0, 6, 1, SAMPLE)],
        [],
        [(0, 6, 1, SAMPLE)],
    ]
    for step_id, rows in enumerate(steps):
        step = plan(step_id, rows)
        got = StepArrays.unpack(packer.pack(step)).columns.tolist()
        assert got == [step.slots, step.generations, step.incarnations, step.starts, step.counts, step.flags]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x91\x01",
        encode(["x"] * 9),
        encode([1, 2, 5, b"abc", b"", b"", b"", b"", []]),
        encode([1, 2, -1, b"abcd" * 6, b"", b"", b"", b"", []]),
        encode([1, 2, 2**63, b"abcd" * 6, b"", b"", b"", b"", []]),
        encode([1, 2, 1, b"abcd" * 6, b"abcd" * 4, b"", b"", b"", []]),
        encode([1, 2, 1, b"abcd" * 6, b"", b"abc", b"", b"", []]),
        encode([1, 2, 1, b"abcd" * 6, b"", b"", b"abcd", b"", []]),
    ],
)
def test_bytes_that_are_no_step_are_protocol_errors(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        StepArrays.unpack(decode_step(data))
    with pytest.raises(ProtocolError):
        decode_result(b"\xc1" + data)


def test_a_script_comes_out_token_by_token_then_the_end() -> None:
    executor = InProcessExecutor(Worker(backend()))
    executor.submit(plan(0, [(0, 0, 3, SAMPLE)], admits=[admit(script=(40, 41))]))
    executor.submit(plan(1, [(0, 3, 1, SAMPLE)]))  # planned before step 0 was collected
    executor.submit(plan(2, [(0, 4, 1, SAMPLE)]))
    assert [executor.collect().token_ids for _ in range(3)] == [[40], [41], [END]]


def test_chunked_prefill_draws_only_at_its_end() -> None:
    executor = InProcessExecutor(Worker(backend()))
    executor.submit(plan(0, [(0, 0, 2, 0)], admits=[admit(script=(40,))]))
    executor.submit(plan(1, [(0, 2, 1, SAMPLE)]))
    assert [executor.collect().token_ids for _ in range(2)] == [[-1], [40]]


def test_a_fault_is_one_rows_matter() -> None:
    executor = InProcessExecutor(Worker(backend()))
    admits = [admit(0, script=(40, FAULT, 42)), admit(1, script=(50, 51, 52))]
    executor.submit(plan(0, [(0, 0, 3, SAMPLE), (1, 0, 3, SAMPLE)], admits=admits))
    for step in (1, 2):
        executor.submit(plan(step, [(0, 2 + step, 1, SAMPLE), (1, 2 + step, 1, SAMPLE)]))
    results = [executor.collect() for _ in range(3)]
    assert [r.status for r in results] == [
        [RowStatus.OK] * 2,
        [RowStatus.NAN_LOGITS, RowStatus.OK],
        [RowStatus.OK] * 2,
    ]
    assert [r.token_ids[1] for r in results] == [50, 51, 52]


def test_resume_continues_where_the_first_life_stopped() -> None:
    """A slot rebuilt from prompt and delivered tokens draws what an undisturbed one draws."""

    def run(n: int, delivered: tuple[int, ...]) -> list[int]:
        executor = InProcessExecutor(Worker(backend()))
        known = (1, 2, 3, *delivered)
        out: list[int] = []
        start = admit(tokens=known, n_prompt_original=3, sampling=Sampling(seed=9))
        executor.submit(plan(0, [(0, 0, len(known), SAMPLE)], admits=[start]))
        for i in range(n):
            out += executor.collect().token_ids
            if i + 1 < n:
                executor.submit(plan(i + 1, [(0, len(known) + i, 1, SAMPLE)]))
        return out

    whole = run(8, ())
    assert run(5, tuple(whole[:3])) == whole[3:]


def test_logit_bias_and_logprobs_are_real_on_a_script() -> None:
    executor = InProcessExecutor(Worker(backend()))
    sampling = Sampling(seed=1, temperature=0.0, logit_bias={77: 100.0}, logprobs=2)
    executor.submit(plan(0, [(0, 0, 3, SAMPLE)], admits=[admit(script=(40,), sampling=sampling)]))
    result = executor.collect()
    assert result.token_ids == [77]
    entry = result.logprobs[0]
    assert entry.top_ids[0] == 40 and entry.logprob < entry.top_logprobs[0]  # of the raw logits, before the bias


def test_prompt_logprobs_score_every_prompt_token_but_the_first() -> None:
    executor = InProcessExecutor(Worker(backend()))
    executor.submit(plan(0, [(0, 0, 2, PROMPT_LOGPROBS)], admits=[admit(prompt_logprobs=1)]))
    executor.submit(plan(1, [(0, 2, 1, SAMPLE | PROMPT_LOGPROBS)]))
    scores = [executor.collect().prompt_logprobs[0] for _ in range(2)]
    assert [len(s) for s in scores] == [2, 0]
    assert [s.top_ids for s in scores[0]] == [[2], [3]]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (plan(2, [(0, 3, 1, SAMPLE)]), "step 2 where 1 was due"),
        (plan(1, [(0, 3, 1, SAMPLE)], engine_epoch=0), "engine epoch 0"),
        (plan(1, [(0, 3, 1, SAMPLE)], generations=[1]), "another life"),
        (plan(1, [(0, 3, 1, SAMPLE)], incarnations=[1]), "another life"),
        (plan(1, [(0, 4, 1, SAMPLE)]), "beyond its slot"),
        (plan(1, [(0, 3, 1, SAMPLE)], frees=[(0, 0)]), "another life"),
        (plan(1, [], admits=[admit(tokens=(1,) * 65)]), "65 tokens"),
        (plan(1, [], admits=[admit(slot=4)]), "slot 4 cannot be admitted"),
        (plan(1, [], admits=[admit(slot=-1)]), "slot -1 cannot be admitted"),
        (plan(1, [], admits=[admit(n_prompt_original=4)]), "4 of 3 tokens"),
        (plan(1, [], admits=[admit(slot=1, tokens=(1 << 31,))]), "no token id"),
        (plan(1, [], frees=[(4, 0)]), "slot 4 cannot be freed"),
        (plan(1, [], copies=[(0, 32)]), "a block that there is not"),
        (grows(0, 0, 1, [32]), "a block that there is not"),
        (grows(0, 0, 2, [3]), "as many table entries"),
        (grows(0, 0, 0, [3]), "as many table entries"),
        (grows(0, 0, 1, []), "as many table entries"),
        (grows(0, 4, 1, [3]), "beyond a slot's block table"),
        (grows(0, -1, 1, [3]), "beyond a slot's block table"),
        (grows(0, 4, -1, []), "as many table entries"),
        (grows(1, 0, 1, [3]), "beyond a slot's block table"),
        (grows(-1, 0, 1, [3]), "beyond a slot's block table"),
        (plan(1, [(0, 3, 1, EMBED)]), "asks for no embedding"),
    ],
)
def test_steps_that_do_not_match_are_refused(step: StepPlan, message: str) -> None:
    worker = Worker(backend())
    worker.execute(StepArrays.unpack(Packer().pack(plan(0, [(0, 0, 3, SAMPLE)], admits=[admit()]))))
    with pytest.raises(ProtocolError, match=message):
        worker.execute(StepArrays.unpack(Packer().pack(step)))
