// Package connlimit implements a listener that bounds how many connections are open at the same time, so that the
// clients of one socket cannot use up the file descriptors that the rest of the process needs.
package connlimit
