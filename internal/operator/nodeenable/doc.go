// Package nodeenable implements the configuration of a node's kubelet to dial pullgated, and the way back. It can
// revert all its changes of the kubelet: after Disable, or after an Enable that failed, every file is byte for byte as
// before, except for changes by others since then, which it does not touch.
//
// # What it writes
//
// It writes a separate file wherever the kind of node has a place for one, so that Disable only has to remove one file.
// In this order:
//
//	k3s, RKE2                             config.yaml.d/90-pullgate.yaml beside its configuration
//	a kubelet with --config-dir, whose    90-pullgate.conf in that folder
//	flags do not set the endpoint
//	a unit that runs the kubelet itself   UNIT.d/90-pullgate.conf in /etc/systemd/system, with the unit's ExecStart and
//	                                      two flags more
//	a unit that runs a script, which      two lines of that file, in place
//	runs the kubelet with --config
//
// If pullgated has no pod source, it also adds one line to pullgated's configuration. An Enable that fails reverts
// that, and Disable does not.
//
// The first line of such a file names pullgatectl as the author, and has a checksum of the rest. A file that another
// program or person wrote or changed is neither overwritten nor removed.
//
// Every plan is checked before it is shown: the package reads the node again with the planned changes. If the kubelet
// would then dial another endpoint, the plan is refused with the name of the file that has precedence.
//
// # What a crash leaves
//
// The journal, a file in pullgated's folder, is on disk before any other change, and is removed last. It contains the
// changes of each file, and no other content of the file.
//
// Killed at any step, Enable does the rest when it is run again, and restarts and watches the kubelet again. Disable
// takes back what was written, restarts the kubelet and removes the journal. Both lock the folder of the journal.
package nodeenable
