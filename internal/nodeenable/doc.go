// Package nodeenable points the kubelet of a node at pullgated, and back. It promises that what it changed it can take
// back: after Disable, or after an Enable that failed, every file is byte for byte what it was before, but for what
// others changed since, which is not touched.
//
// # What it writes
//
// A file of its own wherever the node's way has a place for one, so that taking it back is to remove one file. In this
// order:
//
//	k3s, RKE2                             config.yaml.d/90-pullgate.yaml beside its configuration
//	a kubelet with --config-dir, whose    90-pullgate.conf in that folder
//	flags do not say the endpoint
//	a unit that runs the kubelet itself   UNIT.d/90-pullgate.conf in /etc/systemd/system, with the unit's ExecStart and
//	                                      two flags more
//	a unit that runs a script, which      two lines of that file, in place
//	runs the kubelet with --config
//
// The first line of such a file says who wrote it, and has a checksum of the rest: a file that somebody else wrote or
// changed is neither written over nor removed.
//
// Every plan is checked before it is shown: the node is read again as it would be, and if the kubelet would then dial
// anything else than pullgated, the plan is refused with the name of the file that would win.
//
// # What a crash leaves
//
// The journal, a file in pullgated's folder, is on disk before anything else changes, and goes last. It holds what was
// done to which file, and no other content of it.
//
//	killed after            Enable, run again          Disable
//	the journal is written  does all of it             restarts the kubelet, drops the journal
//	a file is written       does the rest              takes the file back, then the same
//	daemon-reload           does the rest              the same
//	the restart             restarts, watches again    the same
//	the watch               restarts, watches again    the same
//
// Two at once cannot be: both lock the folder of the journal.
package nodeenable
