// Package output implements the output of admin API answers: text for people, and JSON and YAML for programs.
//
// Text from others, such as the name of an image, is only printed: every control character, every invisible character and every
// character that changes the direction of text is written as an escape, in text, JSON and YAML. The reason is that tenants choose
// names, and a terminal obeys control characters. The same answer at the same time gives the same text: the package has no clock
// and does not depend on a terminal.
package output
