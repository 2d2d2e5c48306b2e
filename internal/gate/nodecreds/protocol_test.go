package nodecreds_test

import (
	"encoding/json"
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
		"image": {reflect.TypeFor[v1beta1.CredentialProviderRequest](),
			reflect.TypeFor[v1alpha1.CredentialProviderRequest]()},
		"auth cacheDuration cacheKeyType": {reflect.TypeFor[v1.CredentialProviderResponse](),
			reflect.TypeFor[v1beta1.CredentialProviderResponse](), reflect.TypeFor[v1alpha1.CredentialProviderResponse]()},
		"password username": {reflect.TypeFor[v1.AuthConfig](), reflect.TypeFor[v1beta1.AuthConfig](),
			reflect.TypeFor[v1alpha1.AuthConfig]()},
	} {
		for _, typ := range all {
			if got := strings.Join(namesOf(typ), " "); got != want {
				t.Errorf("%s has %s; want %s", typ, got, want)
			}
		}
	}
}

func TestReportReadsTheTypesOfTheKubelet(t *testing.T) {
	n := newKeyNode(t)
	req := v1.CredentialProviderRequest{Image: "repo.test/team/app:1"}
	req.APIVersion, req.Kind = v1.SchemeGroupVersion.String(), "CredentialProviderRequest"
	resp := v1.CredentialProviderResponse{CacheKeyType: v1.RegistryPluginCacheKeyType,
		Auth: map[string]v1.AuthConfig{"repo.test": {Username: "u", Password: "p"}}}
	resp.APIVersion, resp.Kind = v1.SchemeGroupVersion.String(), "CredentialProviderResponse"
	for _, bound := range []bool{false, true} {
		want := map[string]string{n.id("u", "p"): "repo.test"}
		if bound {
			req.ServiceAccountToken, req.ServiceAccountAnnotations = "t", map[string]string{"a": "b"}
			want = map[string]string{}
		}
		request, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := json.Marshal(resp)
		if err != nil {
			t.Fatal(err)
		}
		r, err := n.report(string(request), string(answer))
		if err != nil {
			t.Errorf("Report = %v; want nil", err)
		}
		n.want(string(request), r, want)
	}
}
