// Package podview implements a neutral view of a pod and its containers, which validators judge.
//
// Several sources describe a pod: the CRI messages of a kubelet, and a Pod of the API. Each fills the same types with what it knows.
// A field that a source does not fill is unknown, which is the zero value, so it never satisfies a restriction by accident.
//
// The view has the fields that policies can use and no others. It holds no environment variable, no command and no argument.
package podview
