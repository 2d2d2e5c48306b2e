// Package wholefile writes files that are there whole or not at all.
//
// It promises that a file which has its name is complete and on disk, and readable by its owner alone; that whatever
// fails on the way leaves neither a part of it nor a change of what was there before; and that nothing which is there
// is replaced unasked.
package wholefile
