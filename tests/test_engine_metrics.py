"""Prometheus text to numbers: recorded answers, known differences, and what is no such text."""

import math
from pathlib import Path

import pytest

from workbench.engine_metrics import Metrics, engine_use, level, read_metrics
from workbench.load_records import Level

DATA = Path(__file__).parent / "data"


def told(text: str) -> dict[str, list[float]]:
    """Every value read, by name."""
    return {name: sorted(series.values()) for name, series in (read_metrics(text) or {}).items()}


def read(*lines: str) -> Metrics:
    found = read_metrics("\n".join(lines))
    assert found is not None
    return found


def test_what_vllm_said() -> None:
    assert told((DATA / "metrics-vllm.txt").read_text()) == {
        "running": [0],
        "waiting": [0],
        "kv cache": [0],
        "preemptions": [0],
        "looked up": [0],
        "found": [0],
        "in": [54012],
        "out": [7860],
    }


def test_what_llamacpp_said() -> None:
    assert told((DATA / "metrics-llamacpp.txt").read_text()) == {
        "running": [0],
        "waiting": [0],
        "in": [27667],
        "out": [4085],
    }


def test_an_interval_of_vllm_by_hand() -> None:
    recorded = (DATA / "metrics-vllm.txt").read_text()
    changes = {
        'num_requests_running{engine="0",model_name="baseline"} 0.0': "6.0",
        'num_requests_waiting{engine="0",model_name="baseline"} 0.0': "2.0",
        'kv_cache_usage_perc{engine="0",model_name="baseline"} 0.0': "0.25",
        'num_preemptions_total{engine="0",model_name="baseline"} 0.0': "3.0",
        ':prefix_cache_queries_total{engine="0",model_name="baseline"} 0.0': "400.0",
        ':prefix_cache_hits_total{engine="0",model_name="baseline"} 0.0': "1e+02",
        'prompt_tokens_total{engine="0",model_name="baseline"} 54012.0': "54412.0",
        'generation_tokens_total{engine="0",model_name="baseline"} 7860.0': "7.960e+03",
    }
    later = recorded
    for line, value in changes.items():
        assert later.count(line) == 1
        later = later.replace(line, f"{line.rpartition(' ')[0]} {value}")
    first, second = read(recorded), read(later)
    use = engine_use([first, second], [first, second])
    assert use is not None
    assert use.model_dump() == {
        "samples": 2,
        "running": {"mean": 3.0, "max": 6.0},
        "waiting": {"mean": 1.0, "max": 2.0},
        "kv_cache_share": {"mean": 0.125, "max": 0.25},
        "preemptions": 3,
        "prefix_cache_hit_rate": 0.25,
        "prompt_tokens": 400,
        "output_tokens": 100,
    }


def test_engines_behind_one_address_are_taken_together() -> None:
    def at(*values: tuple[int, int, float, int]) -> Metrics:
        return read(
            *(
                f'vllm:{name}{{engine="{i}"}} {value}'
                for i, engine in enumerate(values)
                for name, value in zip(
                    (
                        "num_requests_running",
                        "num_requests_waiting",
                        "kv_cache_usage_perc",
                        "generation_tokens_total",
                    ),
                    engine,
                    strict=True,
                )
            )
        )

    first, second = at((1, 0, 0.5, 100), (2, 3, 0.25, 1000)), at((1, 0, 0.5, 110), (2, 3, 0.7, 5))
    use = engine_use([second], [first, second])
    assert use is not None
    assert use.running == Level(mean=3, max=3)
    assert use.waiting == Level(mean=3, max=3)
    assert use.kv_cache_share == Level(mean=0.7, max=0.7)
    # The second engine was started again: 10 of the one, 5 of the other.
    assert use.output_tokens == 15


@pytest.mark.parametrize(
    ("values", "grown"),
    [
        (["10", "25"], 15),
        (["10", "12", "20", "25"], 15),
        (["10", "25", "4", "9"], 24),  # started again: 15, then 4, then 5
        (["10", "10"], 0),
        (["10", "NaN", "25"], 15),
        (["NaN", "10", "+Inf", "25", "-1"], 15),
        (["10", None, "25"], 15),
        (["10"], None),  # nothing to compare it with
        (["NaN", "10"], None),
        ([None, None], None),
    ],
)
def test_what_a_counter_grew_by(values: list[str | None], grown: int | None) -> None:
    readings = [
        read(
            "vllm:num_requests_running 0",
            *([f"vllm:generation_tokens_total {value}"] if value else []),
        )
        for value in values
    ]
    use = engine_use([], readings)
    assert use is not None
    assert use.output_tokens == grown
    assert (use.samples, use.running) == (0, None)


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_running 3",
        "vllm:num_requests_running\t3.0",
        "vllm:num_requests_running{} 3",
        'vllm:num_requests_running{model_name="m",engine="0"} 3',
        'vllm:num_requests_running{ engine = "0" , model_name = "m", } 3',
        'vllm:num_requests_running{model_name="a \\"}\\" # \\\\"} 3',
        "vllm:num_requests_running 3 1700000000000",
        'vllm:num_requests_running 3 # {trace="x"} 0.5 1.0',
        "vllm:num_requests_running 3\r",
    ],
)
def test_each_way_to_write_a_line(line: str) -> None:
    assert told(f"# TYPE vllm:num_requests_running gauge\n{line}\nx 1\n") == {"running": [3]}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "# vllm:num_requests_running 3",
        " x vllm:num_requests_running 3",
        "vllm:num_requests_running",
        "vllm:num_requests_running ",
        "vllm:num_requests_running3",
        "vllm:num_requests_running{engine=0} 3",
        'vllm:num_requests_running{engine="0" 3',
        'vllm:num_requests_running{engine="0',
        "vllm:num_requests_running 3 apples",
        'vllm:num_requests_running_by_reason{reason="x"} 3',
        "num_requests_running 3",
    ],
)
def test_what_is_no_line_of_it_is_left_out(line: str) -> None:
    assert read_metrics(line) is None
    assert told(f"{line}\nvllm:num_requests_running 7\n{line}") == {"running": [7]}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "three"])
def test_a_gauge_that_is_no_number_is_unknown(value: str) -> None:
    bad = read(f"vllm:num_requests_running {value}")
    # Half of a sum is no sum.
    half = read(
        'vllm:num_requests_running{engine="0"} 2',
        f'vllm:num_requests_running{{engine="1"}} {value}',
    )
    good = read("vllm:num_requests_running 4")
    use = engine_use([bad, half, good], [bad, half, good])
    assert use is not None
    assert use.running == Level(mean=4, max=4)
    assert use.samples == 3


def test_labels_in_another_order_are_the_same_series() -> None:
    first = read('llamacpp:tokens_predicted_total{a="1",b="2"} 10')
    second = read('llamacpp:tokens_predicted_total{b="2",a="1"} 14')
    use = engine_use([], [first, second])
    assert use is not None and use.output_tokens == 4


@pytest.mark.parametrize(
    ("queries", "hits", "rate"),
    [
        ((0, 0), (0, 0), None),
        ((5, 5), (1, 1), None),
        ((5, 15), (1, 1), 0.0),
        ((5, 15), None, None),
        ((0, 10), (0, 10), 1.0),
        ((0, 10), (0, 90), None),  # more found than looked up
    ],
)
def test_without_a_lookup_there_is_no_hit_rate(
    queries: tuple[int, int], hits: tuple[int, int] | None, rate: float | None
) -> None:
    readings = [
        read(
            f"vllm:prefix_cache_queries_total {queries[i]}",
            *([f"vllm:prefix_cache_hits_total {hits[i]}"] if hits else []),
        )
        for i in range(2)
    ]
    use = engine_use(readings, readings)
    assert use is not None and use.prefix_cache_hit_rate == rate


def test_where_nothing_was_read_there_is_no_use() -> None:
    assert engine_use([], []) is None
    assert level([]) is None
    assert level([None, None]) is None
    assert level([1, None, 2]) == Level(mean=1.5, max=2)
    assert not math.isnan(level([0.1] * 10).mean)  # type: ignore[union-attr]


@pytest.mark.timeout(20)
def test_a_hostile_text_is_read_in_linear_time() -> None:
    for text in (
        '{a="b",' * 50_000,
        "{" + 'a="b" ' * 50_000,
        "{" + " " * 200_000,
        " " * 200_000 + "{",
        "1" * 500_000,
    ):
        read_metrics(f"vllm:num_requests_running{text}\n")
