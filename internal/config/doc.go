// Package config reads pullgated's configuration: strict YAML with a default for every field. What is
// wrong is told all at once, each with the field's path and what is allowed there, and nothing of a
// bad configuration is used.
package config
