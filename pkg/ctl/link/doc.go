// Package link reaches the pullgated of this node.
//
// It promises that a daemon which is not reached is told from one that refuses, that no question waits longer than the
// caller wanted, and that whatever fails says what failed, why, and what to do.
package link
