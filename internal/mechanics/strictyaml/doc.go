// Package strictyaml implements the decoding of a YAML document into a struct that reports all errors of the document
// at once: unknown fields, with the most similar name that is known, and values of another type than their field has.
//
// Structs name their fields by json tags. The document has the YAML 1.1 types that sigs.k8s.io/yaml reads: an unquoted
// yes is a boolean.
package strictyaml
