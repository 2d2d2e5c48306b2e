// Package disk implements what programs need of files beside package os: writing a file in one step, so that after a
// crash the old file is there or the new one; reading a file that may be anything; and what a file system can hold.
package disk
