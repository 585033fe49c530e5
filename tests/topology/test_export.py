from ringmpi.topology.export import hostfile, mpich_rank_order, openmpi_rankfile, slurm_hostfile

HOSTS = ["a", "a", "b", "b", "c", "c"]
ORDER = (4, 5, 0, 1, 3, 2)  # c, a, and b backwards


def test_a_rankfile_names_host_and_cores_of_each_position():
    assert openmpi_rankfile(HOSTS, ORDER, 1).splitlines()[:3] == [
        "rank 0=c slot=0",
        "rank 1=c slot=1",
        "rank 2=a slot=0",
    ]
    assert openmpi_rankfile(HOSTS, ORDER, 4).splitlines()[4:] == ["rank 4=b slot=0-3", "rank 5=b slot=4-7"]


def test_slurm_reads_a_host_a_line():
    assert slurm_hostfile(HOSTS, ORDER) == "c\nc\na\na\nb\nb\n"


def test_cray_mpich_reads_the_rank_of_each_slot():
    slots = [int(rank) for rank in mpich_rank_order(ORDER).split(",")]
    assert [ORDER[rank] for rank in slots] == [0, 1, 2, 3, 4, 5]
    assert slots == [2, 3, 5, 4, 0, 1]


def test_a_hostfile_has_hosts_in_ring_order():
    assert hostfile(HOSTS, ORDER) == "c:2\na:2\nb:2\n"
