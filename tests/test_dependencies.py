"""Every imported package is declared, also if another package installs it as a dependency."""

import ast
import configparser
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


def declared() -> set[str]:
    """Returns the distributions in install_requires and in the extras for users."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = ("fast", "data", "tpu", "gpu", "tf", "beam", "gcp", "hub", "launch", "mlperf")
    texts = [config["options"]["install_requires"]]
    texts += [config["options.extras_require"][extra] for extra in extras]
    lines = [line for text in texts for line in text.splitlines()]
    requirements = [line for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def imported() -> dict[str, str]:
    """Returns the imported top-level modules, each with a file that imports it."""
    found: dict[str, str] = {}
    for folder in ("bert_jax", "pipelines"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names = [node.module]
                for name in names:
                    found.setdefault(name.partition(".")[0], str(path.relative_to(ROOT)))
    return found


def test_every_imported_package_is_declared() -> None:
    distributions, allowed = packages_distributions(), declared()
    # Only users' pickles need torch. If it is missing, an error asks for it.
    optional = {"torch"}
    missing = {
        module: where
        for module, where in imported().items()
        if module not in sys.stdlib_module_names
        and module not in {"bert_jax", *optional}
        and not {canonicalize_name(name) for name in distributions.get(module, [])} & allowed
    }
    assert missing == {}
