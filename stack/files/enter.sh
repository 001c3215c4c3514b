# Runs a program in another Debian: enter.sh ROOT FOLDER... -- PROGRAM ARGUMENT...
# It sees the folders at their own paths. Call it in a mount namespace of its own: the mounts stay.
root=$1
shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
while [ "$1" != -- ]; do
  mkdir -p "$root$1"
  mount --bind "$1" "$root$1"
  shift
done
shift
exec chroot "$root" "$@"
