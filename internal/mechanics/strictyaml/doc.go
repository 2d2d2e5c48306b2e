// Package strictyaml implements the decoding of a YAML document into a struct that reports all errors at once: unknown
// fields, with the most similar name that is known, and values of another type than their field has. Structs name their
// fields by json tags. The YAML types are those of sigs.k8s.io/yaml: an unquoted yes is a boolean.
package strictyaml
