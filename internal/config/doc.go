// Package config implements reading of the configurations of pullgated ([Config]) and of pullgate-policyd ([Policyd]):
// strict YAML with a default for every field. It reports all errors at once, each with the path of the field and the
// allowed values. It uses no part of an invalid configuration.
package config
