"""Hosts that are machines of their own, in Linux namespaces of one machine.

    level       none            hosts share the machine's names, files and processes
                shared_network  mount, UTS, IPC and PID namespaces a host, and a user namespace unless run as root
                namespace       a network namespace a host besides, with addresses of a network of the job's own; a user
                                namespace a job unless run as root

    syscalls           the system calls that Python lacks, and becoming root of a user namespace
    netlink            links, addresses, routes and rates, by rtnetlink: no `ip`, no `tc`
    network_layout     the layout that the programs below get: addresses, files, rates (pure)
    network            program: the job's network, a bridge in a network namespace that no file names; the way out,
                       pasta and one nft rule
    filesystem         mounts of an instance: /opt/ml, /tmp, /dev/shm, /etc/hosts, /proc; what it sees of its channels,
                       and where its writes to them go
    needed_paths       what a host must see whatever its job is
    enter_namespaces   program: becomes the first process of an instance
    namespace_starter  starts agents in namespaces
    probing, probe     which level works here, and why not

Every namespace lives as long as a process in it or a descriptor of it, and none has a name in the file system. So
nothing has to be removed: when the processes of a run are gone, whatever killed them, its interfaces, addresses,
rules and mounts are gone.

This package imports nothing when it is imported; what runs before an agent uses the standard library only.
"""
