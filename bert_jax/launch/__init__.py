"""Jobs on other machines: a launcher creates the machines, a supervisor watches and deletes them.

:mod:`section` and :mod:`job` describe a job, :mod:`launcher` the operations of every launcher.
"""
