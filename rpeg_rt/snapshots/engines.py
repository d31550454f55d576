"""A worker's engines into a snapshot, and out of one."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from rpeg_rt.engine.engine import Engine, Shard, VersionError
from rpeg_rt.realise import Realisation, Weights
from rpeg_rt.snapshots.contents import places_of, trainer_of, written_by
from rpeg_rt.snapshots.manifest import Manifest, Piece
from rpeg_rt.snapshots.pieces import Pieces, weights_of, write_pieces


def take(
    realisation: Realisation, engines: Mapping[Weights, Engine], rank: int, step: int, directory: Path
) -> dict[str, Piece]:
    """Write what worker `rank` has to write after `step` steps, one file for each model; the files by name.

    Raises OSError, and VersionError where an engine has not what lies between two steps.
    """
    files = {}
    for model in realisation.problem.graph.trainable:
        pieces = list(_pieces(realisation, engines, rank, step, model))
        if pieces:
            name = f"{model}.{rank:05d}.safetensors"
            files[name] = write_pieces(directory / name, pieces)
    return files


def _pieces(
    realisation: Realisation, engines: Mapping[Weights, Engine], rank: int, step: int, model: str
) -> Iterator[tuple[str, Shard]]:
    spec = realisation.problem.models[model]
    for version, place in places_of(realisation, model, step).items():
        if place not in engines:
            continue
        if version not in engines[place].versions:
            raise VersionError(f"a snapshot needs version {version}, held are {engines[place].versions}")
        mine = written_by(rank, spec, realisation.ranks_of(place), place.layout)
        for shard in engines[place].shards(version):
            if shard.slices in mine.get(shard.name, ()):
                yield weights_of(version), shard
    trainer = engines.get(trainer_of(realisation, model))
    if trainer is not None:
        for kind, shards in trainer.optimizer_shards().items():
            yield from ((kind, shard) for shard in shards)


def restore(engine: Engine, place: Weights, realisation: Realisation, manifest: Manifest, at: Path) -> None:
    """Give the engine of a trained model what it begins with. Collective where it trains.

    Raises FileError where the snapshot has not all of it.
    """
    files = sorted(
        name for name in manifest.files if name.rpartition(".")[0].rpartition(".")[0] == place.model
    )
    pieces = Pieces(at / name for name in files)
    for version in realisation.first_versions(place):
        engine.load(pieces.canonical(weights_of(version)), version)
    if place.training:
        for kind, shards in engine.optimizer_shards().items():
            for shard in shards:
                shard.tensor.copy_(pieces.read(kind, shard.name, shard.slices))
        engine.resume(manifest.models[place.model].updates)
