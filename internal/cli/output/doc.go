// Package output writes the answers of the admin API as text for people, and as JSON and YAML for programs.
//
// What others chose, such as the name of an image, is printed and does nothing else: every control character, and every other
// that shows as nothing or turns a line round, is written as an escape, in text, JSON and YAML alike. Tenants choose names, and a
// terminal obeys what it is sent. The same answer at the same time is the same text: the package has no clock and knows of no
// terminal.
package output
