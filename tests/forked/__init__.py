"""Python processes that tests start, as forks of one that has imported the program.

Importing costs three seconds of CPU time in every process, forking a tenth of one. What runs is the
same: `python -m module` or a program, with an environment, a working directory, open files, signals
and an exit code of its own. What a fork cannot show keeps a real start: how long starting takes and
what it loads, a signal during it, what depends on the seed of hashes, how the interpreter ends.
"""
