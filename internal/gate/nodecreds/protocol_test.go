package nodecreds_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"k8s.io/kubelet/pkg/apis/credentialprovider/v1alpha1"
	"k8s.io/kubelet/pkg/apis/credentialprovider/v1beta1"
)

// namesOf returns the names of a protocol type's members, without its header.
func namesOf(t reflect.Type) (names []string) {
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// If this fails after an upgrade of k8s.io/kubelet, check what the new member binds an answer to.
func TestProtocolHasNoUnknownField(t *testing.T) {
	for want, all := range map[string][]reflect.Type{
		"image serviceAccountAnnotations serviceAccountToken": {reflect.TypeFor[v1.CredentialProviderRequest]()},
		"image": {
			reflect.TypeFor[v1beta1.CredentialProviderRequest](), reflect.TypeFor[v1alpha1.CredentialProviderRequest](),
		},
		"auth cacheDuration cacheKeyType": {
			reflect.TypeFor[v1.CredentialProviderResponse](),
			reflect.TypeFor[v1beta1.CredentialProviderResponse](), reflect.TypeFor[v1alpha1.CredentialProviderResponse](),
		},
		"password username": {
			reflect.TypeFor[v1.AuthConfig](), reflect.TypeFor[v1beta1.AuthConfig](), reflect.TypeFor[v1alpha1.AuthConfig](),
		},
	} {
		for _, typ := range all {
			if got := strings.Join(namesOf(typ), " "); got != want {
				t.Errorf("%s has %s; want %s", typ, got, want)
			}
		}
	}
}
