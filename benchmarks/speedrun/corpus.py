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
            "found no files, allowed: a folder with the files of the corpus: {origin}",
            place=f"--corpus: {folder}",
            origin=section.origin,
        )
    found = sha256_of_files(files)
    if section.sha256 not in (None, found):
        raise UserError(
            "speedrun.corpus_hash",
            "found {files} files with SHA-256 {found}, allowed: {expected}. The corpus of the tier "
            "is: {origin}",
            place=f"--corpus: {folder}",
            files=len(files),
            found=found,
            expected=section.sha256,
            origin=section.origin,
        )
    return found
