"""The files of a corpus and their hash."""

from pathlib import Path

from benchmarks.speedrun.tier import CorpusSection
from bert_jax.errors import UserError
from bert_jax.files.read import sha256_of_files


def check_corpus(folder: Path, section: CorpusSection) -> str:
    """Returns the SHA-256 of a corpus: of what ``sha256sum *`` prints in its folder.

    Raises UserError if the folder has no files, or the tier requires another hash.
    """
    files = {file.name: file for file in sorted(folder.glob("*")) if file.is_file()}
    if not files:
        raise UserError(
            "speedrun.no_corpus",
            f"found no files, allowed: a folder with the files of the corpus: {section.origin}",
            place=f"--corpus: {folder}",
        )
    found = sha256_of_files(files)
    if section.sha256 not in (None, found):
        raise UserError(
            "speedrun.corpus_hash",
            f"found {len(files)} files with SHA-256 {found}, allowed: {section.sha256}. The "
            f"corpus of the tier is: {section.origin}",
            place=f"--corpus: {folder}",
        )
    return found
