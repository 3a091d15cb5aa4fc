"""What was heard last of a job's GPUs, until it is too old."""

from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.telemetry import GpuUse, JobFigures, job_key
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.latest_figures import KEEP_S, MAX_CLUSTERS, MAX_OF_CLUSTER, LatestFigures


def figures(cluster: str = "red", counter: int = 1, *, ended: bool = False) -> JobFigures:
    return JobFigures(
        cluster=cluster,
        tenant="acme",
        id="train.1",
        epoch=1,
        counter=counter,
        observed_at_s=0.0,
        use=GpuUse(gpus=2),
        ended=ended,
    )


def test_the_newest_of_each_cluster_counts_until_it_ends_or_is_old() -> None:
    now_s = [0.0]
    heard = LatestFigures(lambda: now_s[0])

    def take(one: JobFigures) -> None:
        heard.take(subjects.job_figures(one.tenant, one.cluster, job_key(one)), encode(one))

    assert heard.of("acme", "train.1") == ()
    take(figures())
    take(figures("blue"))
    take(figures(counter=2))
    assert heard.of("acme", "train.1") == (figures("blue"), figures(counter=2))
    assert heard.of("rival", "train.1") == ()
    take(figures("blue", 2, ended=True))
    assert heard.of("acme", "train.1") == (figures(counter=2),)
    now_s[0] = KEEP_S + 1
    assert heard.of("acme", "train.1") == ()


def test_what_cannot_be_read_or_is_nobodys_is_not_kept_and_the_rest_is_bounded() -> None:
    heard = LatestFigures(lambda: 0.0)
    heard.take("berth.figures.-.red.ml=2FJob=2Fx", encode(figures()))
    heard.take("berth.figures.acme", b"{}")
    heard.take(subjects.job_figures("acme", "red", "train.1"), b"[")
    # A message that says it is about another job than its subject does.
    heard.take(
        subjects.job_figures("acme", "blue", "train.1"), encode(figures()).replace(b"acme", b"evil")
    )
    assert heard.of("acme", "train.1") == ()
    for number in range(3 * MAX_CLUSTERS):
        one = figures(f"c{number}")
        heard.take(subjects.job_figures("acme", one.cluster, "train.1"), encode(one))
    assert len(heard.of("acme", "train.1")) <= MAX_CLUSTERS


def test_cluster_pushes_out_its_own_figures_and_no_others() -> None:
    now_s = [0.0]
    heard = LatestFigures(lambda: now_s[0])
    heard.take(subjects.job_figures("acme", "blue", "train.1"), encode(figures("blue")))
    large = b"x" * 16_384
    many = MAX_OF_CLUSTER // len(large)
    for number in range(2 * many):
        heard.take(f"berth.figures.rival.red.made-up-{number}", large)
    for number in range(56_000):
        heard.take(f"berth.figures.rival.red.small-{number}", b"{}")
    assert heard.of("acme", "train.1") == (figures("blue"),)
    red = heard._tables["red"]
    assert red.size <= MAX_OF_CLUSTER
    assert len(heard._clusters) == len(red.messages) + 1
    now_s[0] = KEEP_S + 1  # and of whoever has fallen silent nothing stays
    for number in range(3):
        heard.take(subjects.job_figures("acme", f"green{number}", "other"), b"{}")
    assert sorted(heard._tables) == ["green0", "green1", "green2"]
    assert len(heard._clusters) == 1


def test_latest_clusters_of_one_job_count() -> None:
    heard = LatestFigures(lambda: 0.0)
    for number in range(3 * MAX_CLUSTERS):
        one = figures(f"c{number:02}")
        heard.take(subjects.job_figures("acme", one.cluster, "train.1"), encode(one))
    found = heard.of("acme", "train.1")
    assert [one.cluster for one in found] == [f"c{n:02}" for n in range(16, 24)]
    assert len(heard._tables) == MAX_CLUSTERS
