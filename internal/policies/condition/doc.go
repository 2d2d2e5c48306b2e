// Package condition implements conditions over evidence: it compiles the conditions of policy files and evaluates them
// on JSON documents, such as the predicate of an attestation.
//
// A condition compares a key with a value. Texts of both may contain expressions in {{ }}, in JMESPath. A text that is
// one expression stands for the value of the expression, whatever its type is; in a longer text the values of the
// expressions are inserted.
//
// Expressions have fields, indexes, projections, filters, comparisons, || && !, literals and pipes, and the
// functions of [Functions]. Nothing else of JMESPath is accepted. Each step of an accepted expression returns at most
// as many values as it reads, so that an evaluation takes time and memory in proportion to the document and to the
// length of the expression.
//
// A condition is not met if its key is absent or null, whatever the operator is, nor if an expression fails. Two values
// are compared as durations if both are, else as quantities or numbers, else as times. Other texts are equal or not,
// and none is before another. In Equals, AnyIn and their kin * and ? in a text of the file are wildcards; in a text of
// the document they are not.
//
// A program has conditions in CEL, on what was found about one image or on a pod. It declares only what is known at its
// place; on images, its validations must say the same about a list as about each image. What cannot be evaluated, and
// what costs more than kube-apiserver allows, is not met.
package condition
