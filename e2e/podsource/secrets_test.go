package podsource_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/pkg/imageref"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fresh is how old the content of a Secret may be.
const fresh = 10 * time.Second

func TestARotatedSecretIsReadWithinItsFreshness(t *testing.T) {
	t.Parallel()
	w := begin(t, kubernetes134)
	before := w.secret("s", "before")
	uid := w.pod("web", "s")
	w.start()
	w.learns(uid, before)
	after := w.rotate("s", "after")
	began := time.Now()
	if before.Ref != after.Ref || before.Credential == after.Credential {
		t.Fatal("the credential has to change, the Secret to stay")
	}
	w.learns(uid, after)
	if took := time.Since(began); took > fresh+2*time.Second {
		t.Errorf("known after %v; want at most %v and a request", took, fresh)
	}
	// Recreated it is another Secret. The Secrets of a new pod are read again.
	w.unsecret("s")
	again := w.secret("s", "after")
	if again.Ref.UID == after.Ref.UID || again.Credential != after.Credential {
		t.Fatal("the Secret has to be another, the credential to stay")
	}
	w.learns(w.pod("second", "s"), again)
	w.learns(uid, again)
}

func TestADeletedSecretHasNoCredentialsAndIsReadAgain(t *testing.T) {
	t.Parallel()
	w := begin(t, kubernetes134)
	first := w.secret("s", "first")
	uid := w.pod("web", "s")
	w.start()
	w.learns(uid, first)
	w.unsecret("s")
	w.until("the Secret is missing", func() bool { return !w.has(uid, first) && w.failed(podsource.Missing) > 0 })
	second := w.secret("s", "second")
	w.learns(uid, second)
}

func TestEveryTypeOfPullSecretIsRead(t *testing.T) {
	t.Parallel()
	w := begin(t, kubernetes134)
	secret := func(name string, kind corev1.SecretType, key string, data []byte) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.name, Name: name}, Type: kind, Data: map[string][]byte{key: data}}
	}
	old := w.put(secret("old", corev1.SecretTypeDockercfg, corev1.DockerConfigKey, marshal(logins("old"))), "old")
	young := w.secret("new", "new")
	// The API server only checks that the content is JSON.
	w.put(secret("broken", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, []byte(`{"auths": ["canary"]}`)), "")
	w.put(secret("opaque", corev1.SecretTypeOpaque, corev1.DockerConfigJsonKey, marshal(map[string]any{"auths": logins("x")})), "")
	whole := w.pod("whole", "old", "opaque", "new")
	partly := w.pod("partly", "new", "broken", "old")
	w.start()
	w.learns(whole, old, young)

	w.until("the malformed Secret is skipped", func() bool {
		p, ok := w.source.ByUID(partly)
		if !ok {
			return false
		}
		got, err := p.Credentials(w.Context(), imageref.New(image))
		return err != nil && len(got) == 2 && got[0] == young && got[1] == old
	})
	// It is read again for each new pod; it is the same Secret.
	count := w.failed(podsource.Malformed)
	w.pod("another", "broken")
	w.until("it was read again", func() bool { return w.failed(podsource.Malformed) > count })
	if n := strings.Count(w.logged(), "Pull secret skipped"); n != 1 {
		t.Errorf("it was logged %d times that it is skipped; want once", n)
	}
	if strings.Contains(w.logged(), "canary") {
		t.Error("the content of a Secret is logged")
	}
}
