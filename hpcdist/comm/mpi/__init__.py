"""Communication over MPI: the only place, with ``backends/mpi.py``, that imports mpi4py."""
