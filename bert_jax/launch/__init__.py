"""Running a job on machines that are not this one: asked for, watched, recreated, deleted.

:mod:`section` and :mod:`job` say what is wanted, :mod:`launcher` what every kind of machine can do.
"""
