from accordion.cli.run import RunSums, describe_savings
from accordion.model.records import Totals

TOTALS = Totals(requests=3, compactions=1, saved=10_000, summary_input=900, summary_output=80, read_back_input=20)


def test_savings_are_net_in_tokens_and_dollars() -> None:
    assert describe_savings(RunSums(TOTALS, 123_400_000)) == (
        "9,000 tokens saved net ($0.12, prompt caching counted): 10,000 removed by compaction, 1,000 used for "
        "summaries and for reading the archive."
    )


def test_a_loss_is_shown_as_one() -> None:
    line = describe_savings(RunSums(Totals(saved=10, summary_input=1_000), -2_500_000))
    assert line.startswith("990 tokens added net (-$0.0025, prompt caching counted): 10 removed by")


def test_without_a_price_there_are_no_dollars() -> None:
    before = RunSums(Totals(requests=1, saved=10), None)
    gain = RunSums(TOTALS, 5).since(before)
    assert (gain.totals.requests, gain.totals.saved, gain.net_cost) == (2, 9_990, None)
    assert describe_savings(gain).startswith("8,990 tokens saved net: ")


def test_sums_add_up() -> None:
    both = RunSums(TOTALS, 5) + RunSums(TOTALS, 6)
    assert (both.totals.saved, both.net_cost) == (20_000, 11)
