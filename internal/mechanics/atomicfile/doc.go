// Package atomicfile implements writing a file in one step: after a crash the old file is there or the new one, never a part of
// one.
package atomicfile
