"""Isolation of the local engine's instances: each a machine of its own, in Linux namespaces.

    level       none            hosts are addresses of 127.0.0.0/8; they share the machine's names, files and processes
                shared_network  the same addresses; mount, UTS, IPC and PID namespaces a host, and a user namespace
                                unless run as root
                namespace       a network namespace a host besides, with addresses of a network of the job's own; a user
                                namespace a job unless run as root

    syscalls          the system calls that Python lacks, and becoming root of a user namespace
    netlink           links, addresses, routes and rates, by rtnetlink: no `ip`, no `tc`
    network_layout    the layout that the programs below get: addresses, files, rates (pure)
    network           program: the job's network, a bridge in a network namespace that no file names
    uplink            the way out of it: pasta, and one nft rule inside the namespace
    uplink_watch      notices that the way out has closed
    filesystem        mounts of an instance: /opt/ml, /tmp, /dev/shm, /etc/hosts, /proc
    channel_views     what an instance sees of its channels, and where its writes to them go
    enter_namespaces  program: becomes the first process of an instance
    start_agents      the supervisor's side: the network, then the agents
    probing, probe    which level works here, and why not
    clashes           what hosts share below level `namespace`, and jobs may trip over
    cut_links         cuts and heals the cable of an instance of a running job

Every namespace lives as long as a process in it or a descriptor of it, and none has a name in the file system. So
nothing has to be removed: when the processes of a run are gone, whatever killed them, its interfaces, addresses,
rules and mounts are gone.

This package imports nothing when it is imported; what runs before an agent uses the standard library only.
"""
