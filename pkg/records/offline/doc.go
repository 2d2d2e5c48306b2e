// Package offline reads the file of a store that no daemon has open, and packs it closer.
//
// No call changes a byte of a store: it is not created, upgraded, mended or set aside. [Compact] writes a file of its own
// and puts that in the store's place when it is whole, on disk and known to hold the same values, or leaves the store as
// it was, whatever happens on the way.
//
// Each call holds the file's lock, which is waited for no longer than a daemon would wait; a daemon that runs has it, and
// the error is ErrInUse then.
//
// # Lines of a dump
//
// Dump writes JSON, a line for each value in the order of bucket and key:
//
//	{"v":1,"bucket":"records","key":"<image ID> <repository>","value":{…}}        who proved access: a records.Record
//	{"v":1,"bucket":"marks","key":"<image ID> <repository>","value":{…}}          a preloaded mark: a records.Mark
//	{"v":1,"bucket":"intents","key":"<repository> <number>","value":{…}}          a pull: a records.Intent
//	{"v":1,"bucket":"meta","key":"<name>","value":…}                              of the store itself: format, distrust, …
//	{"v":1,"bucket":"records","key":"…","unreadable":"<why>"}                     a value that cannot be read
//	{"v":1,"damage":"<what>"}                                                     a part of the file that cannot be walked
//
// Fields may be added; none is removed or changes its meaning within a version. Every line is ASCII. Credentials are
// not in a store, only their IDs.
package offline
