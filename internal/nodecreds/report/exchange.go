package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/pkg/credential"
)

const (
	// defaultLifetime is how long the kubelet is taken to use an answer that does not say it. The
	// default of its configuration is not told to plugins.
	defaultLifetime = 24 * time.Hour
	// margin is added to what an answer says, for a pull that begins in the last moment.
	margin = time.Hour
)

// group is what every apiVersion of the plugin protocol begins with.
const group = "credentialprovider.kubelet.k8s.io/"

var (
	errRequest = errors.New("the kubelet's request is not one that this version of pullgated knows")
	errAnswer  = errors.New("the provider's answer is not one that a kubelet would take")
)

// header is what every message of the protocol has.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// is reports whether a message is of a kind in a version that is known; all have the same fields.
func (h header) is(kind string) bool {
	version, ok := strings.CutPrefix(h.APIVersion, group)
	return ok && h.Kind == kind && slices.Contains([]string{"v1", "v1beta1", "v1alpha1"}, version)
}

// nodeWide reports whether the answer to a request is for every pod of the node, and the version of the
// request. One that is bound to a service account is not; nor is one with a field that nobody here
// knows, which may bind it to something else.
func nodeWide(request []byte) (apiVersion string, wide bool, err error) {
	var r struct {
		header
		Image                     string            `json:"image"`
		ServiceAccountToken       string            `json:"serviceAccountToken"`
		ServiceAccountAnnotations map[string]string `json:"serviceAccountAnnotations"`
	}
	d := json.NewDecoder(bytes.NewReader(request))
	d.DisallowUnknownFields()
	if d.Decode(&r) != nil || !r.is("CredentialProviderRequest") {
		return "", false, errRequest
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "", false, errRequest
	}
	return r.APIVersion, r.ServiceAccountToken == "" && len(r.ServiceAccountAnnotations) == 0, nil
}

// account is an entry of an answer, as an ID cannot yet be made of it.
type account struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// answered is what a provider's answer holds.
type answered struct {
	expires  time.Time          // when the kubelet has certainly ceased to use it
	accounts map[string]account // by the pattern of images that it is for
}

// parse reads an answer that is given now, to a request of a version. No error tells of the content.
func parse(answer []byte, apiVersion string, now time.Time) (answered, error) {
	var a struct {
		header
		CacheDuration *string            `json:"cacheDuration"`
		Auth          map[string]account `json:"auth"`
	}
	// What encoding/json says quotes the content, so nothing of it is passed on.
	if json.Unmarshal(answer, &a) != nil || !a.is("CredentialProviderResponse") || a.APIVersion != apiVersion {
		return answered{}, errAnswer
	}
	if a.CacheDuration == nil {
		return answered{now.Add(defaultLifetime), a.Auth}, nil
	}
	d, err := time.ParseDuration(*a.CacheDuration)
	if err != nil {
		return answered{}, errAnswer
	}
	return answered{now.Add(max(d, 0)).Add(margin), a.Auth}, nil
}

// report returns the IDs of what was answered, each once and sorted; what sends nothing has none.
func (a answered) report(key credential.Key) Report {
	images := map[credential.ID][]string{}
	for _, pattern := range slices.Sorted(maps.Keys(a.accounts)) {
		// As in the kubelet's call to the runtime: two fields, and nothing in the others.
		id := key.ID(credential.New(a.accounts[pattern].Username, a.accounts[pattern].Password, "", "", "", ""))
		if id != "" {
			images[id] = append(images[id], pattern)
		}
	}
	r := Report{KeyFingerprint: key.Fingerprint(), Expires: a.expires.UTC()}
	for id, patterns := range images {
		r.Credentials = append(r.Credentials, Credential{ID: id, Images: patterns})
	}
	slices.SortFunc(r.Credentials, func(a, b Credential) int { return cmp.Compare(a.ID, b.ID) })
	return r
}
