"""The stages, in the order in which they run. A new stage is one module and one line here."""

from gpucomm_selftest.stage import Stage
from gpucomm_selftest.stages import (
    correctness,
    digest,
    init,
    libraries,
    lint,
    pairs,
    preflight,
    rendezvous,
    topology,
    versions,
)

STAGES: dict[str, Stage] = {
    stage.id: stage
    for stage in (
        rendezvous.STAGE,
        versions.STAGE,
        preflight.STAGE,
        libraries.STAGE,
        lint.STAGE,
        topology.STAGE,
        digest.STAGE,
        init.STAGE,
        pairs.STAGE,
        correctness.STAGE,
    )
}
