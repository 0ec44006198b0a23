"""Federations between organisations. This package holds no mathematics, which is in `methods`, `engine` and `simulate`.

agreement    the terms that all parties agree on (sites.toml), and the kit of each party
kits         make all kits of a new federation
pinned       the network of an installed package, as the agreement pins it
settings     a site's own choices
preflight    checks before a start: the kit, the port, the connection
messages     the messages between a site and the coordinator
checks       checks of tensors that arrive, and of a site's answer to a round
memory       the coordinator's state
mailbox      the coordinator's open requests and the answers to them
connection   the state of one site's connection in it
control      requests of the operator to a running coordinator
secret       the sites' common secret for encrypted aggregation, and its exchange
relay        the coordinator's part in that exchange
coordinator  rounds with deadlines and a quorum, resumed from a checkpoint
site         one site's state, training and answers, resumed from a checkpoint
trainer      the process in which a site trains
keeper       that process as the agent sees it
trial        a new site's trial of a finished federation
visits       the coordinator's part in that
finish       a site's last phase, which needs no coordinator
agent        a site's side of the transport
transport    the interface of a transport, and the one between machines
supervise    run a party's process, and restart it when it dies
journal      one line of text for each event
status       the state of a running federation
"""
