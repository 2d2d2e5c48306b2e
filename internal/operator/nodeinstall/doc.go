// Package nodeinstall installs versions of pullgate on a node, takes them back if the node does not stay healthy, and
// takes pullgate off. It works without a network: a pod places programs and a request, everything else runs on the
// host.
//
// # A change
//
// A change leads from what is installed (nothing, or a version with its mode and configuration) to what a request asks
// for, in the stages that [Stages] lists. It ends in one of two states: the new one, or the one before, byte for byte.
// Only status.json, which says how it ended, and an empty lock file are left of one that was taken back.
//
//	FOLDER/state.json           what is installed, and the change in progress: the journal
//	FOLDER/state-before.json    the state to return to, while an installed version is changed
//	FOLDER/status.json          the stage of the last attempt, or how it ended
//	FOLDER/request-ATTEMPT.json what was asked for
//	FOLDER/confirm-ATTEMPT      is there once the attempt is confirmed
//	FOLDER/versions/VERSION     programs
//	FOLDER/pullgatectl          a link to that of the installed version
//
// A file that is replaced gets a second name until the change has ended, so that the way back needs no space on disk.
//
// # The dead-man's switch
//
// From before the journal is written until it has gone, a timer of systemd and a unit that is enabled for the next boot
// are there. Both finish a confirmed change, and take any other back: in the reverse order, the kubelet first, because
// it reaches no runtime without pullgated. A confirmation is a file, so that whoever takes the lock next sees it.
//
// # What a crash leaves
//
// Every stage, and every step of the way back, can be repeated after a kill at any point. Apply goes on with its
// attempt, Revert takes it back, and both do the rest of what the other has begun.
//
// A removal has no way back. It is done by the same steps as a change that is taken back, to the state in which nothing
// is installed.
package nodeinstall
