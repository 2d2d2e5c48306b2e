// Package requirementtest implements what the tests of the readers share: keys and certificates, golden files and the text of policies.
package requirementtest
