"""Recorded crash states: what a clean run left on disk after each of its operations, each one resumed from.

A real run is traced (:mod:`.recorder`), its file operations are played back one by one (:mod:`.tree`,
:mod:`.moments`), and each state that a driver could have died in is put back under the same ``SLUICE_HOME`` and resumed
in a kept Spark session (:mod:`.resumer`).
"""
