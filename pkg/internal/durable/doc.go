// Package durable waits until what was done to a folder is on disk.
package durable
