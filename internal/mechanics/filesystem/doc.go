// Package filesystem implements reading how much space a file system has, and whether it can keep files over a reboot.
package filesystem
